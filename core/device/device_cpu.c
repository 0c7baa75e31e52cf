/* device_cpu.c - the host's processors as a device. Floor 1 (device).
 *
 * I1  Device memory is host memory: arenas are plain arenas, copies are memcpy and done on return.
 * I2  `model` names the processor as the kernel does, for the numerics fingerprint; where the
 *     kernel gives no name (aarch64), implementer and part number stand in its place.
 *
 * Memory: the caller's. Threads: any. */
#include "device_int.h"
#include "../base/sysio.h"
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

static mc_status cpu_arena_init(struct mc_device *d, struct mc_arena *a, const char *name,
                                size_t bytes, struct mc_err *err)
{
    (void)d;
    return mc_arena_init(a, name, bytes, err);
}

static void cpu_arena_fini(struct mc_device *d, struct mc_arena *a)
{
    (void)d;
    mc_arena_fini(a);
}

static void cpu_copy(struct mc_device *d, void *dst, const void *src, size_t bytes)
{
    (void)d;
    if (bytes > 0)
        memcpy(dst, src, bytes); /* I1 */
}

static void cpu_zero(struct mc_device *d, void *dst, size_t bytes)
{
    (void)d;
    if (bytes > 0)
        memset(dst, 0, bytes);
}

static const struct mc_device_ops cpu_ops = {
    .name = "cpu",
    .arena_init = cpu_arena_init,
    .arena_fini = cpu_arena_fini,
    .copy_in = cpu_copy,
    .copy_out = cpu_copy,
    .zero = cpu_zero,
};

/* The value of the first line "key<blanks>: value" of text; 0 when there is none. */
static int value_of(const char *text, const char *key, char *dst, size_t cap)
{
    size_t nk = strlen(key);
    for (const char *line = text; line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
        if (strncmp(line, key, nk) != 0)
            continue;
        const char *p = line + nk;
        p += strspn(p, " \t");
        if (*p++ != ':')
            continue;
        p += strspn(p, " \t");
        snprintf(dst, cap, "%.*s", (int)strcspn(p, "\n"), p);
        return dst[0] != 0;
    }
    return 0;
}

static void read_model(char *dst, size_t cap)
{
    char *text = NULL, impl[32], part[32];
    size_t n;
    struct utsname u;
    if (mc_sys_read_file("/proc/cpuinfo", (size_t)64 << 20, &text, &n, NULL) == MC_OK &&
        value_of(text, "model name", dst, cap)) {
        mc_free(text);
        return;
    }
    const char *arch = uname(&u) == 0 ? u.machine : "cpu";
    if (text && value_of(text, "CPU implementer", impl, sizeof impl) &&
        value_of(text, "CPU part", part, sizeof part)) /* I2 */
        snprintf(dst, cap, "%.16s implementer %.20s part %.20s", arch, impl, part);
    else
        snprintf(dst, cap, "%.64s", arch);
    mc_free(text);
}

mc_status mc_device_open_cpu(int index, struct mc_device *d, struct mc_err *err)
{
    if (index != 0)
        return mc_err_set(err, MC_E_MACHINE,
                          "device cpu:%d: a host has one CPU device, index 0 (ranks share it)",
                          index);
    memset(d, 0, sizeof *d);
    d->kind = MC_DEVICE_CPU;
    d->index = index;
    d->ops = &cpu_ops;
    read_model(d->model, sizeof d->model);
    return MC_OK;
}
