/* kern_int.h - what the files of this folder share: the CPU tables and the BLAS seam. */
#pragma once
#include "kern.h"

extern const struct mc_kern_ops mc_cpu_f32_ops;  /* cpu_f32.c */
extern const struct mc_kern_ops mc_cpu_f64_ops;  /* cpu_f64.c */
extern const struct mc_kern_ops mc_cpu_bf16_ops; /* cpu_bf16.c */

/* The tile grid of C[M,N] += A[M,K] B[K,N]: rows and columns of one tile, a function of the shape
 * only. */
struct mc_gemm_grid {
    int64_t tile_m, tile_n;
    int64_t tiles_m, tiles_n;
};
struct mc_gemm_grid mc_gemm_cpu_grid(int64_t m, int64_t n, int64_t k);
mc_status mc_gemm_cpu_start(struct mc_pool *pool, struct mc_err *err);
void mc_gemm_cpu_fingerprint(char *dst, size_t cap);
