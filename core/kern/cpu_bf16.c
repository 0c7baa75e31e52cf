/* cpu_bf16.c - the kernels of the CPU in bf16: the body of cpu_f32.c reading and writing bf16.
 * Floor 2 (kern). Includes: base tensor device.
 *
 * I1  Bits depend on shapes only: not on threads (tasks are cut by shape, cpu/par.inl), and not on
 *     the instruction set (as cpu_f32.c; conversions are integer work, tensor/bf16.h).
 * I2  A task writes only its own output; sums over tasks are made afterwards in task order.
 * I3  No kernel allocates, fails or checks: shapes are the graph's, ids are the data floor's. An id
 *     outside the vocabulary gives NaN, which the step's own check sees, never a foreign read.
 * I4  Operands are widened exactly, everything inside a kernel is fp32, and each output is rounded
 *     to nearest even once. What a kernel keeps for later or adds up over the step stays fp32:
 *     statistics, token losses, rope tables, gradients of parameters.
 * Memory: borrows everything. Scratch comes from the caller; a product keeps its widened blocks on
 * the stack, 320 KiB (cpu/gemm_bf16.inl).
 * Threads: called on the trainer thread; the bodies run on the pool. */
#define stored         uint16_t
#define STORED_IS_REAL 0
#define real           float
#define REAL_IS_F32    1
#define REAL_DTYPE     MC_BF16
#define REAL_NAME      "cpu-bf16"
#define REAL_GEMM      cblas_sgemm
#define REAL_GEMV      cblas_sgemv
#define TABLE          mc_cpu_bf16_ops
#define WIDE_TABLE     mc_cpu_f32_ops

#include "cpu/table.inl"
