/* kern.h - the kernel table: what a device computes. One table per (device, dtype); plain data in,
 * plain data out.
 *
 * All pointers are device memory in the table's dtype unless typed otherwise or *wide*: of the
 * dtype of `wide`, which is the table's own, or fp32 beside a bf16 table. Wide are statistics
 * (rstd, mean, lse), token losses, cos and sin, gradients of parameters (dw, db), all of AdamW, and
 * scratch. At bf16 operands are read exactly, a kernel computes in fp32, and rounds what it stores
 * to nearest even once: after C or dx was added, where it adds. Matrices are row-major with a row
 * stride in elements (ld*), so that a column slice of a fused [M, Nq+Nk+Nv] buffer is an ordinary
 * operand. M = rows (tokens of the microbatch: B*T), C = features, V = vocabulary.
 *
 * I1  Bits depend on shapes only, never on the thread count: tile grids and reduction orders are
 *     functions of the shape; BLAS runs one thread per tile and tiles never split K.
 * I2  `acc` = 1 adds to the output, 0 overwrites. Outputs never alias inputs unless a line says so.
 * I3  No kernel allocates; scratch comes from the caller, sized by the _scratch functions (bytes).
 *
 * The CPU tables are one body (the .inl files of cpu) compiled once per dtype: cpu_f32.c,
 * cpu_f64.c, cpu_bf16.c. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "../base/pool.h"
#include "../base/status.h"
#include "../device/device.h"
#include "../tensor/dtype.h"

struct mc_gemm { /* C[M,N] = alpha * op(A) op(B) + (acc ? C : 0); K is never split */
    int64_t m, n, k;
    int ta, tb; /* 0: as stored ([M,K], [K,N]); 1: stored transposed ([K,M], [N,K]) */
    const void *a;
    int64_t lda;
    const void *b;
    int64_t ldb;
    void *c;
    int64_t ldc;
    double alpha;
    int acc;
    const void *bias; /* [N] added to each row of C after the product, or NULL; with acc 0 only */
    int wide;         /* C is wide: gradients of weights. No bias then */
};
struct mc_norm { /* rms: y = x * rstd * w; layer: y = (x - mean) * rstd * w + b.  Statistics in fp32
                    (fp64 tables: fp64) */
    int64_t m, c;
    double eps;
    const void *x;
    int64_t ldx;
    const void *w;
    const void *b /* layer only, may be NULL */;
    void *y;
    int64_t ldy;
    void *rstd, *mean; /* [M] saved; mean: layer only */
    /* rms only. heads > 1: each row is that many vectors of c columns side by side, normed apart
     * with the same w; rstd [M, heads]. unit: y = x * rstd * (1 + w) */
    int64_t heads;
    int unit;
};
struct mc_norm_grad {
    int64_t m, c;
    const void *x;
    int64_t ldx;
    const void *w;
    const void *rstd, *mean;
    const void *dy;
    int64_t lddy;
    void *dx;
    int64_t lddx;
    int acc_dx; /* backward_input */
    void *dw, *db;
    void *scratch; /* backward_weight: dw, db [C] always added to; scratch norm_scratch(M x heads,
                      C) bytes */
    int64_t heads; /* as in forward */
    int unit;
};
struct mc_rope { /* rotates pairs of the first `turned` columns of each head, T = turned: (i, i +
                    T/2) ("half" layout) or (2i, 2i + 1) (interleaved). The other columns, and the
                    last one of an odd T, are copied. sin/cos tables are fp64-computed, rounded once
                    and may carry a factor */
    int64_t b, t, heads, d;
    int64_t pos0;          /* row r = (seq r / t, position pos0 + r % t) */
    const void *cos, *sin; /* [max_pos, T/2] */
    const void *x;
    int64_t ldx;
    void *y;
    int64_t ldy;    /* y may be x */
    int inverse;    /* 1: rotate back (backward) */
    int64_t turned; /* 0: D */
    int interleaved;
};
/* Which keys of its own sequence a query at position p sees: 0 .. p (causal) or all. Both of these
 * narrow a causal row; blocks of keys that no row of a block sees are skipped. */
struct mc_attn_mask {
    int64_t window;       /* > 0: not below p - window + 1 */
    const int32_t *start; /* not NULL: not below start[row], a position <= p; [B*T]; cached: of the
                             new rows. It does not fall from one row of a sequence to the next */
    double cap;           /* > 0: scores s become cap tanh(s / cap) before softmax */
};
struct mc_attn { /* causal; query head h reads kv head h / (heads / kv_heads). Never stores T x T */
    int64_t b, t, heads, kv_heads, d;
    double scale;
    int causal;
    const void *q, *k, *v;
    int64_t ldq, ldk, ldv; /* rows B*T */
    void *o;
    int64_t ldo;   /* [B*T, heads*D] */
    void *lse;     /* [B, heads, T] log-sum-exp of scaled scores, saved */
    void *scratch; /* attn_scratch(): per pool thread, the same for attn, attn_bwd, attn_cached */
    struct mc_attn_mask mask;
};
struct mc_attn_grad {
    struct mc_attn f; /* as in forward; o and lse are its results */
    const void *d_o;
    int64_t lddo;
    void *dq, *dk, *dv;
    int64_t lddq, lddk, lddv; /* overwritten */
    void *scratch;
};
struct mc_attn_cached { /* one sequence, `t` new rows at positions pos0..; keys and values of
                           0..pos0+t-1 come from the cache */
    int64_t t, pos0, heads, kv_heads, d;
    double scale;
    const void *q;
    int64_t ldq;
    const void *kc, *vc;
    int64_t ldc; /* [max_t, kv_heads*D] caches, new rows already in */
    void *o;
    int64_t ldo;
    void *scratch;
    struct mc_attn_mask mask;
};
enum mc_unary_kind {
    MC_UNARY_GELU /* erf-free tanh form */,
    MC_UNARY_GELU_ERF,
    MC_UNARY_SILU,
    MC_UNARY_RELU,
    MC_UNARY_RELU_SQUARED,
    MC_UNARY_SOFTCAP /* cap tanh(x / cap) */
};
struct mc_unary {
    enum mc_unary_kind kind;
    int64_t m, c;
    const void *x;
    int64_t ldx;
    void *y;
    int64_t ldy; /* y may be x */
    const void *dy;
    int64_t lddy;
    void *dx;
    int64_t lddx; /* backward: dx = dy f'(x); dx may be dy */
    double cap;   /* softcap only */
};
enum mc_gate_kind { MC_GATE_SILU, MC_GATE_GELU /* tanh form */, MC_GATE_GELU_ERF };
struct mc_swiglu { /* and its kin: gate(g) * u */
    int64_t m, c;
    const void *g, *u;
    int64_t ldg, ldu;
    void *y;
    int64_t ldy; /* y = gate(g) * u */
    const void *dy;
    int64_t lddy;
    void *dg, *du;
    int64_t lddg, lddu;
    enum mc_gate_kind gate;
};
struct mc_add {
    int64_t m, c;
    const void *x;
    int64_t ldx;
    const void *y;
    int64_t ldy;
    void *z;
    int64_t ldz; /* z = ax x + ay y; may be x or y. (1, 0) copies x, bit for bit */
    double ax, ay;
};
struct mc_embed { /* y[r] = w[id[r]] ; positions: y[r] = x[r] + w[pos0 + r % t].  An id outside
                     [0, vocab) gives a row of NaN and no gradient, never a foreign read */
    int64_t m, c, vocab, t, pos0;
    const int32_t *ids;
    const void *w;
    const void *x;
    int64_t ldx;
    void *y;
    int64_t ldy;
    const void *dy;
    int64_t lddy;
    void *dw; /* backward_weight: dw [vocab, C] added to, rows in ascending r */
    /* parts of a table or of a sequence: w and dw hold rows first .. end - 1 of the vocabulary (end
     * 0: all), others give a row of zeros and no gradient; positions count row r as row0 + r */
    int64_t first, end, row0;
};
struct mc_dropout { /* keep where (philox bits of (key, step, first + r*C + c) as u32) >= p * 2^32;
                       y = x / (1 - p).  Element e has word e % 4 of Philox4x32-10 under counter
                       { (e/4) lo, (e/4) hi, step lo, step hi } and key { key lo, key hi } */
    int64_t m, c;
    const void *x;
    int64_t ldx;
    void *y;
    int64_t ldy; /* y may be x; backward is the same call on dy */
    double p;
    uint64_t key, step;
    uint64_t first;     /* logical index of element (0,0): rows are global sample*seq + position */
    const int64_t *row; /* [M] logical row index of each row, or NULL: r */
    /* columns col0 .. col0 + c - 1 of `width` logical ones (0: c): element (r, j) is first +
     * r*width
     * + col0 + j */
    int64_t width, col0;
};
struct mc_xent { /* per row: loss = lse - logit[target]; rows with target < 0 are masked: loss 0,
                    lse 0, gradient 0, whatever their logits hold; target >= v: loss NaN */
    int64_t m, v;
    const int32_t *targets;
    void *logits;
    int64_t ld;   /* forward reads; backward overwrites with dlogits = (softmax - onehot) * scale */
    void *lse;    /* [M] saved */
    void *loss;   /* [M] token losses, wide */
    double scale; /* backward: 1/N */
    /* smoothing e, z: loss = (1 - e)(lse - logit[target]) + e (lse - mean of the logits) + z lse^2
     */
    double smoothing, z;
    int64_t
        pad; /* columns v .. v + pad - 1 stand beyond the vocabulary: probability 0, gradient 0 */
    /* a vocabulary in parts: here are columns first .. first + v - 1 of `all` (0: v; v may be 0).
     * xent_part writes what this part knows of each row to `part`; xent_join makes lse and loss of
     * `parts` such blocks, in order, and needs no logits; xent_bwd turns this part's logits */
    int64_t first, all;
    double *part; /* [M, 4], join: [parts, M, 4]: the largest logit, the sum of exp(logit - it), the
                     target's logit or 0 where it is elsewhere, the sum of logits */
    int64_t parts;
};
struct mc_adamw { /* on the flat master: n elements; decoupled decay; eps outside the root */
    int64_t n;
    void *w, *m, *v;
    const void *g;
    void *rounded;                       /* NULL, or: takes w in the table's dtype */
    double gscale;                       /* gradient multiplier (clip) */
    double lr, beta1, beta2, eps, decay; /* decay multiplies lr */
    double bias1, bias2;                 /* 1 - beta^t */
};

struct mc_kern_ops {
    const char *name; /* "cpu-f32" */
    enum mc_dtype dtype;
    const struct mc_kern_ops *wide; /* for wide operands: this table, or fp32 beside bf16 */
    void (*gemm)(struct mc_pool *, const struct mc_gemm *);
    void (*rmsnorm)(struct mc_pool *, const struct mc_norm *);
    void (*rmsnorm_bwd_input)(struct mc_pool *, const struct mc_norm_grad *);
    void (*rmsnorm_bwd_weight)(struct mc_pool *, const struct mc_norm_grad *);
    void (*layernorm)(struct mc_pool *, const struct mc_norm *);
    void (*layernorm_bwd_input)(struct mc_pool *, const struct mc_norm_grad *);
    void (*layernorm_bwd_weight)(struct mc_pool *, const struct mc_norm_grad *);
    void (*rope)(struct mc_pool *, const struct mc_rope *);
    void (*attn)(struct mc_pool *, const struct mc_attn *);
    void (*attn_bwd)(struct mc_pool *, const struct mc_attn_grad *);
    void (*attn_cached)(struct mc_pool *, const struct mc_attn_cached *);
    void (*unary)(struct mc_pool *, const struct mc_unary *);
    void (*unary_bwd)(struct mc_pool *, const struct mc_unary *);
    void (*swiglu)(struct mc_pool *, const struct mc_swiglu *);
    void (*swiglu_bwd)(struct mc_pool *, const struct mc_swiglu *);
    void (*add)(struct mc_pool *, const struct mc_add *);
    void (*bias_bwd)(struct mc_pool *, int64_t m, int64_t n, const void *dy, int64_t lddy, void *db,
                     void *scratch); /* db += column sums */
    void (*embed)(struct mc_pool *, const struct mc_embed *);
    void (*embed_bwd)(struct mc_pool *, const struct mc_embed *);
    void (*positions)(struct mc_pool *, const struct mc_embed *);
    void (*positions_bwd)(struct mc_pool *, const struct mc_embed *);
    void (*dropout)(struct mc_pool *, const struct mc_dropout *);
    void (*xent)(struct mc_pool *, const struct mc_xent *);
    void (*xent_bwd)(struct mc_pool *, const struct mc_xent *);
    void (*xent_part)(struct mc_pool *, const struct mc_xent *);
    void (*xent_join)(struct mc_pool *, const struct mc_xent *);
    void (*adamw)(struct mc_pool *, const struct mc_adamw *);
    /* of wide operands, in fp64, in fixed order */
    double (*sum)(struct mc_pool *, const void *x, int64_t n);
    double (*sum_squares)(struct mc_pool *, const void *x, int64_t n);
    void (*from_f32)(void *dst, const float *src, int64_t n); /* exact or rounded to nearest even */
    void (*to_f32)(float *dst, const void *src, int64_t n);
    /* bytes of scratch, functions of the shape and (attn) of pool threads */
    size_t (*norm_scratch)(int64_t m, int64_t c);
    size_t (*bias_scratch)(int64_t m, int64_t n);
    size_t (*attn_scratch)(int64_t b, int64_t t, int64_t heads, int64_t kv_heads, int64_t d,
                           int threads);
};
/* MC_E_MACHINE when this build has no such table (cuda here). */
mc_status mc_kern_get(enum mc_device_kind kind, enum mc_dtype dtype, const struct mc_kern_ops **ops,
                      struct mc_err *err);
/* BLAS start-up: checks the flavour, sets one thread, runs one warm-up GEMM on each pool thread
 * (before the memory baseline). */
mc_status mc_kern_start(struct mc_pool *pool, struct mc_err *err);
/* "openblas 0.3.21 SkylakeX glibc 2.36": for the numerics fingerprint. */
void mc_kern_fingerprint(char *dst, size_t cap);
