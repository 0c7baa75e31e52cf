/* rng.c - draws as pure functions of (seed, name, step, logical index). Floor 0 (base).
 *
 * I1  No state: what a rank draws does not depend on what it or others drew before.
 * I2  The bits of every draw are the same on every machine: 32 x 32 -> 64 bit products, and fp64 +
 *     - * / and square root, each rounded once as IEEE 754 says. No libm function is called but
 *     sqrt, which IEEE 754 fixes; the file is compiled with -ffp-contract=off.
 * I3  A keyed permutation is a bijection of [0,n) for every n and key, by construction: each
 *     Feistel round can be undone, and walking a cycle of a bijection until it re-enters [0,n) is
 *     one, too.
 *
 * The key is XXH3_64bits of the name with the seed as its seed: names that differ in one letter,
 * and seeds that differ by one, have unrelated keys.
 *
 * The normal quantile is Wichura's AS241 (PPND16): one rational function of degree 7/7 in the
 * middle and two in the tails, relative error about 1e-16. Its argument is (k + 1/2) 2^-52, k of 52
 * bits: exact, symmetric, never 0 or 1, so that |x| < 8.3.
 *
 * Memory: none. Threads: any. */
#include "rng.h"
#include "hash.h"
#include "status.h"
#include <math.h>
#include <string.h>

/* ---- Philox4x32-10 ---- */

void mc_philox4x32(const uint32_t ctr[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = ctr[0], c1 = ctr[1], c2 = ctr[2], c3 = ctr[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)UINT32_C(0xd2511f53) * c0;
        uint64_t p1 = (uint64_t)UINT32_C(0xcd9e8d57) * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += UINT32_C(0x9e3779b9); /* golden ratio */
        k1 += UINT32_C(0xbb67ae85); /* sqrt(3) - 1 */
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t mc_rng_key(uint64_t seed, const char *name)
{
    return mc_hash64_seed(name, strlen(name), seed);
}

uint64_t mc_rng_u64(uint64_t key, uint64_t step, uint64_t index)
{
    const uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    const uint32_t c[4] = {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)step,
                           (uint32_t)(step >> 32)};
    uint32_t r[4];
    mc_philox4x32(c, k, r);
    return r[0] | (uint64_t)r[1] << 32;
}

double mc_rng_uniform(uint64_t key, uint64_t step, uint64_t index)
{
    return (double)(mc_rng_u64(key, step, index) >> 11) * 0x1p-53;
}

/* ---- normals (I2) ---- */

/* Natural logarithm of a normal x > 0, error below 2 units in the last place. x = m 2^e with m in
 * [1/sqrt 2, sqrt 2); ln m = 2 artanh(s), s = (m-1)/(m+1), |s| < 0.1716, by its series to s^23: the
 * first term left out is below 2^-61 of the sum. */
static double log_own(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)(bits >> 52) - 1023;
    bits = (bits & UINT64_C(0x000fffffffffffff)) | UINT64_C(0x3ff0000000000000);
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m *= 0.5;
        e++;
    }
    double f = m - 1.0; /* exact */
    double s = f / (m + 1.0), z = s * s, t = 1.0 / 23.0;
    for (int k = 21; k >= 3; k -= 2)
        t = t * z + 1.0 / k;
    /* ln 2 in two parts: the first has 21 zero bits at its end, so e * hi is exact. */
    const double hi = 0x1.62e42feep-1, lo = 0x1.a39ef35793c76p-33;
    return e * hi + (2.0 * s + (2.0 * s * z * t + e * lo));
}

/* num(r) / den(r), both of degree 7, coefficients from the constant upwards. */
static double ratio(const double a[8], const double b[8], double r)
{
    double n = a[7], d = b[7];
    for (int i = 6; i >= 0; i--) {
        n = n * r + a[i];
        d = d * r + b[i];
    }
    return n / d;
}

double mc_rng_normal_quantile(double p)
{
    static const double a[8] = {3.3871328727963666080e0,  1.3314166789178437745e+2,
                                1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                4.5921953931549871457e+4, 6.7265770927008700853e+4,
                                3.3430575583588128105e+4, 2.5090809287301226727e+3};
    static const double b[8] = {1.0,
                                4.2313330701600911252e+1,
                                6.8718700749205790830e+2,
                                5.3941960214247511077e+3,
                                2.1213794301586595867e+4,
                                3.9307895800092710610e+4,
                                2.8729085735721942674e+4,
                                5.2264952788528545610e+3};
    static const double c[8] = {1.42343711074968357734e0,  4.63033784615654529590e0,
                                5.76949722146069140550e0,  3.64784832476320460504e0,
                                1.27045825245236838258e0,  2.41780725177450611770e-1,
                                2.27238449892691845833e-2, 7.74545014278341407640e-4};
    static const double d[8] = {1.0,
                                2.05319162663775882187e0,
                                1.67638483018380384940e0,
                                6.89767334985100004550e-1,
                                1.48103976427480074590e-1,
                                1.51986665636164571966e-2,
                                5.47593808499534494600e-4,
                                1.05075007164441684324e-9};
    static const double e[8] = {6.65790464350110377720e0,  5.46378491116411436990e0,
                                1.78482653991729133580e0,  2.96560571828504891230e-1,
                                2.65321895265761230930e-2, 1.24266094738807843860e-3,
                                2.71155556874348757815e-5, 2.01033439929228813265e-7};
    static const double f[8] = {1.0,
                                5.99832206555887937690e-1,
                                1.36929880922735805310e-1,
                                1.48753612908506148525e-2,
                                7.86869131145613259100e-4,
                                1.84631831751005468180e-5,
                                1.42151175831644588870e-7,
                                2.04426310338993978564e-15};
    double q = p - 0.5;
    if (fabs(q) <= 0.425)
        return q * ratio(a, b, 0.180625 - q * q);
    double r = sqrt(-log_own(q < 0 ? p : 1.0 - p));
    double x = r <= 5.0 ? ratio(c, d, r - 1.6) : ratio(e, f, r - 5.0);
    return q < 0 ? -x : x;
}

float mc_rng_normal(uint64_t key, uint64_t step, uint64_t index)
{
    uint64_t k = mc_rng_u64(key, step, index) >> 12;
    return (float)mc_rng_normal_quantile(((double)k + 0.5) * 0x1p-52);
}

/* ---- keyed permutation (I3) ---- */

/* Eight rounds on two halves of `half` bits, 4^half the smallest such power >= n: at most 4 walks
 * on average. */
uint64_t mc_rng_permute(uint64_t key, uint64_t n, uint64_t i)
{
    enum {
        ROUNDS = 8
    }; /* six leave a bias of some percent for n below 10; eight none that shows */
    MC_ASSERT(n >= 1 && i < n);
    if (n == 1)
        return 0;
    int half = (64 - __builtin_clzll(n - 1) + 1) / 2; /* 1 .. 32 */
    uint64_t mask = (UINT64_C(1) << half) - 1, k[ROUNDS];
    for (int r = 0; r < ROUNDS; r++)
        k[r] = mc_mix64(key + (uint64_t)r * UINT64_C(0xd1342543de82ef95));
    uint64_t x = i;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (int r = 0; r < ROUNDS; r++) {
            uint64_t t = left ^ (mc_mix64(right ^ k[r]) & mask);
            left = right;
            right = t;
        }
        x = left << half | right;
    } while (x >= n);
    return x;
}
