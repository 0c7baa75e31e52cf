/* device.c - which kinds of device there are, and how one is opened. Floor 1 (device).
 * I1  A kind that is known but not in this build is an error that says so; nothing falls back.
 * Threads: any. */
#include "device_int.h"
#include <string.h>

static const char *const kinds[] = {[MC_DEVICE_CPU] = "cpu", [MC_DEVICE_CUDA] = "cuda"};

int mc_device_kind_parse(const char *s)
{
    for (int k = 0; k < (int)(sizeof kinds / sizeof *kinds); k++)
        if (strcmp(kinds[k], s) == 0)
            return k;
    return -1;
}

mc_status mc_device_open(enum mc_device_kind kind, int index, struct mc_device *d,
                         struct mc_err *err)
{
    switch (kind) {
    case MC_DEVICE_CPU:
        return mc_device_open_cpu(index, d, err);
    case MC_DEVICE_CUDA: /* I1 */
        return mc_err_set(err, MC_E_MACHINE,
                          "device \"cuda\": this build of mascon has no CUDA device; use "
                          "--device cpu, or a build configured with MC_CUDA=on");
    }
    return mc_err_set(err, MC_E_BUG, "device kind %d does not exist", (int)kind);
}

void mc_device_close(struct mc_device *d)
{
    memset(d, 0, sizeof *d); /* a CPU holds nothing */
}
