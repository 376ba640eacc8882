/* Elementary functions in double precision, rounded to float: short series, because a module should stay small. */
#include "math.h"

#include <stddef.h>
#include <stdint.h>

#define NOT_A_NUMBER __builtin_nanf("")
#define INFINITE __builtin_inff()

static const double PI = 3.14159265358979323846;
static const double LN2 = 0.693147180559945309417;

void *memset(void *to, int value, size_t size) {
    unsigned char *at = to;
    while (size--) *at++ = (unsigned char)value;
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t size) {
    unsigned char *at = to;
    const unsigned char *next = from;
    while (size--) *at++ = *next++;
    return to;
}

void *memmove(void *to, const void *from, size_t size) {
    unsigned char *at = to;
    const unsigned char *next = from;
    if (at <= next) return memcpy(to, from, size);
    while (size--) at[size] = next[size];
    return to;
}

static double from_bits(uint64_t bits) {
    union { uint64_t u; double d; } both;
    both.u = bits;
    return both.d;
}

static uint64_t to_bits(double value) {
    union { uint64_t u; double d; } both;
    both.d = value;
    return both.u;
}

/* 2^n and e^r - 1, where e^x = 2^n e^r and |r| <= ln(2) / 2; x is from -700 to 700. */
static double split(double x, double *power) {
    const double n = __builtin_rint(x / LN2);
    const double r = x - n * 0.693147180369123816490 - n * 1.90821492927058770002e-10;
    double sum = 0.0;
    int k;
    for (k = 13; k >= 1; k--) sum = (sum + 1.0) * r / k;
    *power = from_bits((uint64_t)(1023 + (int64_t)n) << 52);
    return sum;
}

static double exponential(double x) {
    double power, sum;
    if (x != x) return x;
    if (x > 700.0) return (double)INFINITE;
    if (x < -700.0) return 0.0;
    sum = split(x, &power);
    return power * sum + power;
}

static double exp_minus_one(double x) {
    double power, sum;
    if (x != x) return x;
    if (x > 700.0) return (double)INFINITE;
    if (x < -700.0) return -1.0;
    sum = split(x, &power);
    return power * sum + (power - 1.0);
}

/* ln(1 + x) for |x| < 0.5: a series in x / (2 + x). */
static double log_near_one(double x) {
    const double s = x / (2.0 + x);
    double sum = 0.0;
    int k;
    for (k = 21; k >= 1; k -= 2) sum = sum * s * s + 1.0 / k;
    return 2.0 * s * sum;
}

static double logarithm(double x) {
    const uint64_t bits = to_bits(x);
    double m = from_bits((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
    double n = (double)((int64_t)(bits >> 52) - 1023);
    if (!(x > 0.0)) return x == 0.0 ? -(double)INFINITE : (double)NOT_A_NUMBER;
    if (x == (double)INFINITE) return x;
    if (m > 1.4142135623730951) m *= 0.5, n += 1.0;
    return n * LN2 + log_near_one(m - 1.0);
}

static double log_one_plus(double x) {
    return x < 0.4 && x > -0.29 ? log_near_one(x) : logarithm(1.0 + x);
}

/* sin(x) for quarter = 0, cos(x) for quarter = 1. */
static double sine(double x, int64_t quarter) {
    double n, r, sum, term;
    int k, odd;
    if (!(x - x == 0.0)) return (double)NOT_A_NUMBER;
    n = __builtin_rint(x / (PI / 2));
    r = (x - n * 1.57079632673412561417) - n * 6.07710050650619224932e-11;
    quarter += (int64_t)n;
    odd = (int)(quarter & 1);
    term = sum = odd ? 1.0 : r;
    for (k = odd ? 1 : 2; k < 20; k += 2) term *= -r * r / (k * (k + 1)), sum += term;
    return quarter & 2 ? -sum : sum;
}

static double arc_tangent(double x) {
    double sum = 0.0, square;
    int k, halvings;
    if (x != x) return x;
    if (x < 0.0) return -arc_tangent(-x);
    if (x > 1.0) return PI / 2 - arc_tangent(1.0 / x);
    for (halvings = 0; halvings < 2; halvings++) x = x / (1.0 + __builtin_sqrt(1.0 + x * x));
    square = x * x;
    for (k = 27; k >= 1; k -= 2) sum = 1.0 / k - square * sum;
    return 4.0 * x * sum;
}

float expf(float x) {
    return (float)exponential((double)x);
}

float expm1f(float x) {
    return (float)exp_minus_one((double)x);
}

float logf(float x) {
    return (float)logarithm((double)x);
}

float log1pf(float x) {
    return (float)log_one_plus((double)x);
}

float powf(float x, float y) {
    const int whole = __builtin_floorf(y) == y;
    const int odd = whole && __builtin_fabsf(y) < 16777216.0f && ((int32_t)y & 1);
    double size;
    if (y == 0.0f || x == 1.0f) return 1.0f;
    if (x < 0.0f && !whole) return NOT_A_NUMBER;
    if (x == 0.0f) return y > 0.0f ? (odd ? x : 0.0f) : (odd ? 1.0f / x : INFINITE);
    size = exponential((double)y * logarithm((double)__builtin_fabsf(x)));
    return (float)(x < 0.0f && odd ? -size : size);
}

/* All terms of this series are positive: nothing cancels. */
float erff(float x) {
    const double z = (double)x, square = z * z;
    double term = z, sum = z;
    int k;
    if (x != x) return x;
    if (x > 4.0f) return 1.0f;
    if (x < -4.0f) return -1.0f;
    for (k = 1; k < 80; k++) term *= 2.0 * square / (2 * k + 1), sum += term;
    return (float)(1.12837916709551257390 * exponential(-square) * sum);
}

float sinf(float x) {
    return (float)sine((double)x, 0);
}

float cosf(float x) {
    return (float)sine((double)x, 1);
}

float tanf(float x) {
    return (float)(sine((double)x, 0) / sine((double)x, 1));
}

float asinf(float x) {
    const double z = (double)x;
    return (float)arc_tangent(z / __builtin_sqrt((1.0 - z) * (1.0 + z)));
}

float acosf(float x) {
    const double z = (double)x;
    return (float)(2.0 * arc_tangent(__builtin_sqrt((1.0 - z) / (1.0 + z))));
}

float atanf(float x) {
    return (float)arc_tangent((double)x);
}

float sinhf(float x) {
    return (float)((exp_minus_one((double)x) - exp_minus_one(-(double)x)) / 2.0);
}

float coshf(float x) {
    return (float)((exponential((double)x) + exponential(-(double)x)) / 2.0);
}

float tanhf(float x) {
    double less;
    if (x > 20.0f) return 1.0f;
    if (x < -20.0f) return -1.0f;
    less = exp_minus_one(2.0 * (double)x);
    return (float)(less / (less + 2.0));
}

float asinhf(float x) {
    const double z = __builtin_fabs((double)x);
    const double result = log_one_plus(z + z * z / (1.0 + __builtin_sqrt(z * z + 1.0)));
    return (float)(x < 0.0f ? -result : result);
}

float acoshf(float x) {
    const double less = (double)x - 1.0;
    return x < 1.0f ? NOT_A_NUMBER : (float)log_one_plus(less + __builtin_sqrt(less * (less + 2.0)));
}

float atanhf(float x) {
    const double z = (double)x;
    return (float)(0.5 * log_one_plus(2.0 * z / (1.0 - z)));
}
