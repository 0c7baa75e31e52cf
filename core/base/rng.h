/* rng.h - the counter-based generator: Philox4x32-10 (Salmon et al., SC'11), keyed by name, indexed
 * by logical element.
 *
 * One meaning on every layout and device: a draw is a pure function of (seed, name, step, logical
 * element index).
 *   key     = XXH3 of the name, seeded                (64 bits)
 *   counter = { index lo, index hi, step lo, step hi } (4 x 32 bits)
 * Normals are made on the host in fp64 by our own polynomial, without contraction
 * (-ffp-contract=off for rng.c), so that their bits are the same on every machine; fp32 draws are
 * that value rounded once, and fp64 *runs* use the exact widening of the fp32 draw. */
#pragma once
#include <stdint.h>

void mc_philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4]);

uint64_t mc_rng_key(uint64_t seed, const char *name);
uint64_t mc_rng_u64(uint64_t key, uint64_t step, uint64_t index);   /* 64 bits */
double mc_rng_uniform(uint64_t key, uint64_t step, uint64_t index); /* [0,1), 53 bits */
float mc_rng_normal(uint64_t key, uint64_t step, uint64_t index);   /* N(0,1), |x| < 9 */
/* Inverse of the normal distribution function for 2^-1000 < p < 1 - 2^-53, relative error ~1e-16;
 * the same bits on every machine. */
double mc_rng_normal_quantile(double p);
/* Keyed permutation of [0,n): a Feistel network with cycle walking. n >= 1, i < n. */
uint64_t mc_rng_permute(uint64_t key, uint64_t n, uint64_t i);
