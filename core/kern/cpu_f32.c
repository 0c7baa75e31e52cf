/* cpu_f32.c - the kernels of the CPU in fp32: one body, cpu/ *.inl, shared with cpu_f64.c and
 * cpu_bf16.c.
 * Floor 2 (kern). Includes: base tensor device.
 *
 * I1  Bits depend on shapes only: not on threads (tasks are cut by shape, cpu/par.inl), and not on
 *     the instruction set (sums run in 16 fixed lanes, nothing is contracted, small products are
 *     the same chains of fused multiply-adds; only BLAS differs from one CPU to another, and the
 *     fingerprint names it).
 * I2  A task writes only its own output; sums over tasks are made afterwards in task order.
 * I3  No kernel allocates, fails or checks: shapes are the graph's, ids are the data floor's. An id
 *     outside the vocabulary gives NaN, which the step's own check sees, never a foreign read.
 * Memory: borrows everything. Scratch comes from the caller.
 * Threads: called on the trainer thread; the bodies run on the pool. */
#define real        float
#define REAL_IS_F32 1
#define REAL_DTYPE  MC_F32
#define REAL_NAME   "cpu-f32"
#define REAL_GEMM   cblas_sgemm
#define REAL_GEMV   cblas_sgemv
#define TABLE       mc_cpu_f32_ops

#include "cpu/table.inl"
