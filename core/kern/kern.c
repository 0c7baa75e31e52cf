/* kern.c - which kernel table a device and a dtype get.
 * Floor 2 (kern). Includes: base tensor device.
 * I1  A pair without a table is an error that says what to do, never a slower or rounder stand-in.
 * Memory: none; the tables are constants.
 * Threads: any. */
#include "kern_int.h"

mc_status mc_kern_get(enum mc_device_kind kind, enum mc_dtype dtype, const struct mc_kern_ops **ops,
                      struct mc_err *err)
{
    if (kind != MC_DEVICE_CPU) /* I1 */
        return mc_err_set(err, MC_E_MACHINE,
                          "this build has no kernels for CUDA devices; use device = \"cpu\"");
    switch (dtype) {
    case MC_F32:
        *ops = &mc_cpu_f32_ops;
        return MC_OK;
    case MC_F64:
        *ops = &mc_cpu_f64_ops;
        return MC_OK;
    case MC_BF16:
        *ops = &mc_cpu_bf16_ops;
        return MC_OK;
    default:
        return mc_err_set(err, MC_E_MACHINE,
                          "this build has no CPU kernels for %s; use precision = \"fp32\", "
                          "\"fp64\" or \"bf16\"",
                          mc_dtype_name(dtype));
    }
}

mc_status mc_kern_start(struct mc_pool *pool, struct mc_err *err)
{
    MC_TRY(mc_gemm_cpu_start(pool, err));
    return MC_OK;
}

void mc_kern_fingerprint(char *dst, size_t cap)
{
    mc_gemm_cpu_fingerprint(dst, cap);
}
