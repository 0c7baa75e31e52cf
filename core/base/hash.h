/* hash.h - XXH3 (libxxhash) for bytes, mix64 for logical tensors. */
#pragma once
#include <stddef.h>
#include <stdint.h>

uint64_t mc_hash64(const void *p, size_t n); /* XXH3_64bits */
uint64_t mc_hash64_seed(const void *p, size_t n, uint64_t seed);
uint64_t mc_mix64(uint64_t x);              /* bijective: the output of SplitMix64 at state x */
void mc_hash_hex(uint64_t h, char dst[17]); /* 16 lower-case digits, NUL */
/* Streaming XXH3_64bits; handle life. */
struct mc_hasher;
struct mc_hasher *mc_hasher_create(void);
void mc_hasher_reset(struct mc_hasher *h);
void mc_hasher_add(struct mc_hasher *h, const void *p, size_t n);
uint64_t mc_hasher_value(const struct mc_hasher *h);
void mc_hasher_destroy(struct mc_hasher *h);

/* weights_hash: per tensor, sum mod 2^64 of mix64(mix64(index) ^ bits) over logical elements:
 * shardable, the same on any layout; then XXH3 over (name, shape, sum) in name order. bits: the
 * element's IEEE bits, zero-extended. */
uint64_t mc_hash_elems(const void *data, int elem_bytes, uint64_t first_index, uint64_t n);
