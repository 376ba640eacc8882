/* Polynomials after Cephes' expf and logf: no library is needed, and all machines agree. */
INLINE vec exponential(vec x) {
    vec n, r, p;
    ivec k;
    x = CHOOSE(x > 88.0f, splat(88.0f), x);
    x = CHOOSE(x < -87.0f, splat(-87.0f), x);
    n = x * 1.44269504f + 12582912.0f; /* rounds to a whole number */
    k = AS_INT(n) - 0x4b400000;
    n = n - 12582912.0f;
    r = x - n * 0.693359375f + n * 2.12194440e-4f;
    p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return AS_FLOAT(AS_INT(p) + k * 8388608);
}

/* Of positive numbers. */
INLINE vec logarithm(vec x) {
    ivec bits = AS_INT(x), k = ((bits >> 23) & 255) - 126;
    vec m = AS_FLOAT((bits & 0x007fffff) | 0x3f000000), z, p, e;
    ivec low = m < 0.70710678f;
    k = k - ICHOOSE(low, ISPLAT(1), ISPLAT(0));
    m = CHOOSE(low, m + m, m) - 1.0f;
    e = FLOATS(k);
    z = m * m;
    p = m * 7.0376836292e-2f - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    return m + (m * z * p - e * 2.12194440e-4f - z * 0.5f) + e * 0.693359375f;
}
