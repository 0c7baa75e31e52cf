/* sketch.h - a few numbers that stand for a tensor, and add up over its parts.
 *
 * Each element x_i at logical index i goes into MC_SKETCH sums with signs that a hash of i gives:
 *     p_k = sum_i s_k(i) x_i,  s_k(i) in {-1, +1}
 * so for two tensors a, b the mean over k of (p_k(a) - p_k(b))^2 estimates ||a - b||^2 without
 * bias, with a relative standard deviation of sqrt(2 / MC_SKETCH). Sketches are linear: those of
 * the parts of a tensor, and of partial sums of it, add up to that of the whole, on any layout.
 * The hash is weights_hash's sum (base/hash.h): it adds up over parts, too, and tells whether all
 * bits are equal; of partial sums it says nothing. */
#pragma once
#include <stdint.h>
#include "dtype.h"

enum { MC_SKETCH = 8 };
struct mc_sketch {
    int64_t count, nonfinite;
    double sum, squares, max; /* of the finite elements; max: of the magnitudes */
    double p[MC_SKETCH];
    uint64_t hash;
};
/* n elements at p, of logical indices first, first + 1 ... F64, F32, BF16 and I32. */
void mc_sketch_add(struct mc_sketch *s, const void *p, enum mc_dtype t, int64_t first, int64_t n);
void mc_sketch_join(struct mc_sketch *s, const struct mc_sketch *part);
double mc_sketch_norm(const struct mc_sketch *s); /* estimate of ||x||, from p alone */
/* Estimate of ||a - b||; infinite when they have other numbers of non-finite elements. */
double mc_sketch_apart(const struct mc_sketch *a, const struct mc_sketch *b);
