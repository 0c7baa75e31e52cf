/* device.h - a device's memory and identity. Kernels are in core/kern; a kernel table goes with a
 * device kind. */
#pragma once
#include <stddef.h>
#include "../base/status.h"
#include "../base/arena.h"

enum mc_device_kind { MC_DEVICE_CPU, MC_DEVICE_CUDA };
struct mc_device;
struct mc_device_ops {
    const char *name; /* "cpu" */
    mc_status (*arena_init)(struct mc_device *d, struct mc_arena *a, const char *name, size_t bytes,
                            struct mc_err *err);
    void (*arena_fini)(struct mc_device *d, struct mc_arena *a);
    void (*copy_in)(struct mc_device *d, void *dst, const void *host_src,
                    size_t bytes); /* host -> device, done on return */
    void (*copy_out)(struct mc_device *d, void *host_dst, const void *src,
                     size_t bytes); /* device -> host, done on return */
    void (*zero)(struct mc_device *d, void *dst, size_t bytes);
};
struct mc_device {
    enum mc_device_kind kind;
    int index; /* on this host */
    const struct mc_device_ops *ops;
    char model[96]; /* "AMD EPYC ..." for the numerics fingerprint */
};
int mc_device_kind_parse(const char *s); /* -1 unknown */
/* MC_E_MACHINE when the kind is not built in or not there; the message says which. */
mc_status mc_device_open(enum mc_device_kind kind, int index, struct mc_device *d,
                         struct mc_err *err);
void mc_device_close(struct mc_device *d);
