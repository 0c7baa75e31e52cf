/* math.inl - exp for loops that must vectorise; libm where fp64 is the proof or a row needs one.
 *
 * fp32 exp: x = n ln 2 + r with |r| <= ln 2 / 2 (ln 2 in two parts, the first of 10 bits, so that
 * n times it is exact), a polynomial of degree 7 on r, and 2^n by exponent bits in two halves, so
 * that n = 128 near the top does not overflow early. At most 1 ulp off over the whole range (a test
 * walks it). Below ln(2^-126) the result is 0, not a denormal. inf and NaN as in libm. */
#if REAL_IS_F32
INL real exp_r(real x)
{
    const float low = -87.33654f;          /* ln 2^-126 */
    const float shift = 12582912.0f;       /* 1.5 * 2^23: adding it rounds to an integer */
    const int32_t shift_bits = 0x4b400000; /* its bits; the integer sits in the low ones */
    float c = x < low ? low : x;           /* NaN passes both */
    c = c > 88.8f ? 88.8f : c;
    float t = c * 1.44269504088896341f + shift;
    int32_t bits;
    memcpy(&bits, &t, sizeof bits);
    float n = t - shift;
    float r = (c - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    int32_t e = bits - shift_bits, half = e >> 1, rest = e - half;
    int32_t b0 = (int32_t)((uint32_t)(half + 127) << 23);
    int32_t b1 = (int32_t)((uint32_t)(rest + 127) << 23);
    float s0, s1;
    memcpy(&s0, &b0, sizeof s0);
    memcpy(&s1, &b1, sizeof s1);
    float y = p * s0 * s1;
    return x < low ? 0.0f : y;
}
#else
INL real exp_r(real x)
{
    return exp(x);
}
#endif

INL real log_r(real x)
{
    return REAL_IS_F32 ? (real)logf((float)x) : (real)log((double)x);
}
INL real erfc_r(real x)
{
    return REAL_IS_F32 ? (real)erfcf((float)x) : (real)erfc((double)x);
}
INL real sqrt_r(real x)
{
    return REAL_IS_F32 ? (real)sqrtf((float)x) : (real)sqrt((double)x);
}
INL real sigmoid_r(real x)
{
    return (real)1 / ((real)1 + exp_r(-x));
}

/* fp32: with e = exp(2|x|), (e - 1) / (e + 1) from 1/4 on, where e - 1 loses at most two bits; the
 * series up to x^11 below. At most 4 ulp off (a test walks it). */
#if REAL_IS_F32
INL real tanh_r(real x)
{
    float a = x < 0 ? -x : x, q = x * x;
    float e = exp_r((a > 10.0f ? 10.0f : a) * 2.0f); /* from 9.02 on tanh is 1 */
    float big = (e - 1.0f) / (e + 1.0f);
    float p = -8.8632355e-3f;
    p = p * q + 2.1869488e-2f;
    p = p * q - 5.3968254e-2f;
    p = p * q + 1.3333333e-1f;
    p = p * q - 3.3333333e-1f;
    float small = x + x * (q * p);
    float y = a < 0.25f ? small : x < 0 ? -big : big;
    return x != x ? x : y;
}
#else
INL real tanh_r(real x)
{
    return tanh(x);
}
#endif
