/* bf16.h - the upper half of an fp32: 1 sign, 8 exponent, 7 fraction bits.
 *
 * Rounding is to nearest, ties to even, by IEEE 754 throughout: subnormals are kept and rounded
 * into, what lies past the largest finite number becomes inf, a NaN stays one (its quiet bit set,
 * its upper bits kept). The instruction vcvtneps2bf16 is not used: it takes subnormals for zero, so
 * its bits would differ from those of other CPUs. Integer work, which vectorises as well. */
#pragma once
#include <stdint.h>
#include <string.h>

static inline __attribute__((always_inline)) float mc_bf16_to_f32(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

static inline __attribute__((always_inline)) uint16_t mc_bf16_from_f32(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t near = (bits + 0x7fff + (bits >> 16 & 1)) >> 16, nan = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : near);
}
