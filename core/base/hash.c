/* hash.c - XXH3 for bytes; a sum over logical elements for tensors. Floor 0 (base).
 *
 * I1  The tensor sum commutes and associates (addition mod 2^64), so that shards may be summed
 *     apart and in any order: the same value on every layout, device and thread count.
 * I2  Elements are read as little-endian integers, which is what both supported machines have.
 *
 * Memory: a hasher is a handle of libxxhash. Threads: any; a hasher belongs to one. */
#include "hash.h"
#include "status.h"
#include <string.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "I2");

uint64_t mc_hash64(const void *p, size_t n)
{
    return XXH3_64bits(p, n);
}

uint64_t mc_hash64_seed(const void *p, size_t n, uint64_t seed)
{
    return XXH3_64bits_withSeed(p, n, seed);
}

static inline uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t mc_mix64(uint64_t x)
{
    return mix(x);
}

void mc_hash_hex(uint64_t h, char dst[17])
{
    static const char digit[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++)
        dst[i] = digit[(h >> (60 - 4 * i)) & 15];
    dst[16] = 0;
}

/* struct mc_hasher is libxxhash's state under our name: never defined, only cast. */
struct mc_hasher *mc_hasher_create(void)
{
    XXH3_state_t *s = XXH3_createState();
    if (s)
        XXH3_64bits_reset(s);
    return (struct mc_hasher *)s;
}

void mc_hasher_reset(struct mc_hasher *h)
{
    XXH3_64bits_reset((XXH3_state_t *)h);
}

void mc_hasher_add(struct mc_hasher *h, const void *p, size_t n)
{
    if (n > 0)
        XXH3_64bits_update((XXH3_state_t *)h, p, n);
}

uint64_t mc_hasher_value(const struct mc_hasher *h)
{
    return XXH3_64bits_digest((const XXH3_state_t *)h);
}

void mc_hasher_destroy(struct mc_hasher *h)
{
    XXH3_freeState((XXH3_state_t *)h);
}

uint64_t mc_hash_elems(const void *data, int elem_bytes, uint64_t first_index, uint64_t n)
{
    MC_ASSERT(elem_bytes == 1 || elem_bytes == 2 || elem_bytes == 4 || elem_bytes == 8);
    const unsigned char *p = data;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < n; i++, p += elem_bytes) {
        uint64_t bits = 0;
        memcpy(&bits, p, (size_t)elem_bytes);    /* I2 */
        sum += mix(mix(first_index + i) ^ bits); /* I1 */
    }
    return sum;
}
