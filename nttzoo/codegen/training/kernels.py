"""The C text that all training steps share.

A vector holds one element of all examples of a block, so that every load is a whole vector and a weight is one
broadcast; with BLOCK 1, for devices, a vector is a float and the same code needs nothing but a C99 compiler.
"""

from __future__ import annotations

from collections.abc import Iterable

VECTORS = """\
#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE static __attribute__((noinline))
#define SQRT(x) __builtin_sqrtf(x)
#else
#include <math.h>
#define INLINE static inline
#define NOINLINE static
#define SQRT(x) sqrtf(x)
#endif

#if BLOCK > 1
typedef float vec __attribute__((vector_size(4 * BLOCK)));
typedef int32_t ivec __attribute__((vector_size(4 * BLOCK)));
typedef uint32_t uvec __attribute__((vector_size(4 * BLOCK)));
typedef uint8_t bvec __attribute__((vector_size(BLOCK), aligned(1)));
#define LANE(v, i) ((v)[i])
#define KEEP(mask, v) ((vec)((ivec)(v) & (mask)))
#define CHOOSE(mask, a, b) ((vec)(((ivec)(a) & (mask)) | ((ivec)(b) & ~(mask))))
#define ICHOOSE(mask, a, b) (((a) & (mask)) | ((b) & ~(mask)))
#define BYTES(v) __builtin_convertvector(v, bvec)
#define WORDS(v) __builtin_convertvector(v, ivec)
#define FLOATS(v) __builtin_convertvector(v, vec)
#define AS_INT(v) ((ivec)(v))
#define AS_FLOAT(v) ((vec)(v))
#define ISPLAT(x) ((ivec){0} + (x))
#define NOT(mask) (~(mask))
#else
typedef float vec;
typedef int32_t ivec;
typedef uint32_t uvec;
typedef uint8_t bvec;
#define LANE(v, i) (v)
#define KEEP(mask, v) ((mask) ? (v) : 0.0f)
#define CHOOSE(mask, a, b) ((mask) ? (a) : (b))
#define ICHOOSE(mask, a, b) ((mask) ? (a) : (b))
#define BYTES(v) ((bvec)(v))
#define WORDS(v) ((ivec)(v))
#define FLOATS(v) ((float)(v))
static inline int32_t as_int(float x) { union { float f; int32_t i; } u; u.f = x; return u.i; }
static inline float as_float(int32_t x) { union { float f; int32_t i; } u; u.i = x; return u.f; }
#define AS_INT(v) as_int(v)
#define AS_FLOAT(v) as_float(v)
#define ISPLAT(x) ((ivec)(x))
#define NOT(mask) (!(mask))
#endif

static const vec ZERO = {0};

INLINE vec splat(float x) { vec v = {0}; v += x; return v; }

/* The sum over the examples of a block, always in the same order. */
INLINE float total(vec v) {
#if BLOCK == 16
    typedef float half __attribute__((vector_size(32)));
    typedef float quarter __attribute__((vector_size(16)));
    union { vec v; half h[2]; } a;
    union { half v; quarter h[2]; } b;
    quarter q;
    a.v = v;
    b.v = a.h[0] + a.h[1];
    q = b.h[0] + b.h[1];
    return (q[0] + q[2]) + (q[1] + q[3]);
#elif BLOCK == 8
    typedef float half __attribute__((vector_size(16)));
    union { vec v; half h[2]; } a;
    half q;
    a.v = v;
    q = a.h[0] + a.h[1];
    return (q[0] + q[2]) + (q[1] + q[3]);
#elif BLOCK == 4
    return (v[0] + v[2]) + (v[1] + v[3]);
#else
    return v;
#endif
}
"""

# Polynomials after Cephes' expf and logf, and Abramowitz and Stegun 7.1.26 for erf: no library is needed, and all
# machines agree.
MATH = """\
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
"""

FUNCTIONS = {
    "sigmoid": """\
INLINE vec sigmoid(vec x) { return 1.0f / (1.0f + exponential(-x)); }
INLINE vec f_sigmoid(vec x) { return sigmoid(x); }
INLINE vec d_sigmoid(vec x) { vec s = sigmoid(x); return s * (1.0f - s); }
""",
    "tanh": """\
INLINE vec f_tanh(vec x) {
    vec e = exponential(-2.0f * CHOOSE(x < 0.0f, -x, x)), far = (1.0f - e) / (1.0f + e), z = x * x, near;
    near = z * -5.70498872745e-3f + 2.06390887954e-2f; /* near zero the quotient loses digits */
    near = near * z - 5.37397155531e-2f;
    near = near * z + 1.33314422036e-1f;
    near = near * z - 3.33332819422e-1f;
    return CHOOSE(z < 0.390625f, near * z * x + x, CHOOSE(x < 0.0f, -far, far));
}
INLINE vec d_tanh(vec x) { vec t = f_tanh(x); return 1.0f - t * t; }
""",
    "gelu": """\
INLINE vec normal_cdf(vec x) {
    vec a = CHOOSE(x < 0.0f, -x, x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * a), p;
    p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = (p * t + 0.254829592f) * t * exponential(-a * a) * 0.5f;
    return CHOOSE(x < 0.0f, p, 1.0f - p);
}
INLINE vec f_gelu(vec x) { return x * normal_cdf(x); }
INLINE vec d_gelu(vec x) { return normal_cdf(x) + x * exponential(x * x * -0.5f) * 0.39894228f; }
""",
    "gelu_tanh": """\
INLINE vec f_gelu_tanh(vec x) { return 0.5f * x * (1.0f + f_tanh(0.79788456f * (x + 0.044715f * x * x * x))); }
INLINE vec d_gelu_tanh(vec x) {
    vec t = f_tanh(0.79788456f * (x + 0.044715f * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
}
""",
    "relu": """\
INLINE vec f_relu(vec x) { return KEEP(x > 0.0f, x); }
INLINE vec d_relu(vec x) { return KEEP(x > 0.0f, splat(1.0f)); }
""",
    "leaky_relu": """\
INLINE vec f_leaky_relu(vec x, float slope) { return CHOOSE(x < 0.0f, x * slope, x); }
INLINE vec d_leaky_relu(vec x, float slope) { return CHOOSE(x < 0.0f, splat(slope), splat(1.0f)); }
""",
    "elu": """\
INLINE vec f_elu(vec x, float a) { return CHOOSE(x > 0.0f, x, a * (exponential(x) - 1.0f)); }
INLINE vec d_elu(vec x, float a) { return CHOOSE(x > 0.0f, splat(1.0f), a * exponential(x)); }
""",
    "silu": """\
INLINE vec f_silu(vec x) { return x * sigmoid(x); }
INLINE vec d_silu(vec x) { vec s = sigmoid(x); return s * (1.0f + x * (1.0f - s)); }
""",
    "hard_swish": """\
INLINE vec f_hard_swish(vec x) {
    vec gate = (x + 3.0f) * (1.0f / 6.0f);
    gate = CHOOSE(gate > 1.0f, splat(1.0f), KEEP(gate > 0.0f, gate));
    return x * gate;
}
INLINE vec d_hard_swish(vec x) {
    return CHOOSE(x > 3.0f, splat(1.0f), KEEP(x > -3.0f, x * (1.0f / 3.0f) + 0.5f));
}
""",
    "clip": """\
INLINE vec f_clip(vec x, float low, float high) {
    x = CHOOSE(x < low, splat(low), x);
    return CHOOSE(x > high, splat(high), x);
}
INLINE vec d_clip(vec x, float low, float high) { return KEEP(x < high, KEEP(x > low, splat(1.0f))); }
""",
}
NEEDS = {"gelu_tanh": ("tanh",), "silu": ("sigmoid",)}  # functions in terms of others

ROOT = """\
INLINE vec inverse_root(vec x) {
#if BLOCK > 1
    int i;
    for (i = 0; i < BLOCK; i++) x[i] = 1.0f / SQRT(x[i]);
    return x;
#else
    return 1.0f / SQRT(x);
#endif
}
"""

DROPOUT = """\
/* Whether each example keeps element i; a hash of step, block, layer and element, so that the way back agrees. */
INLINE vec kept(uvec lanes, uint32_t key, uint32_t i, uint32_t threshold, float scale) {
    uvec h = (lanes + (key ^ (i * 0x9e3779b9u))) * 0x85ebca6bu;
    h ^= h >> 15;
    h *= 0xc2b2ae35u;
    h ^= h >> 13;
    h *= 0x27d4eb2fu;
    return KEEP((ivec)((h >> 8) >= threshold), splat(scale));
}
"""

DOTS = """\
INLINE vec sum_rows(const vec *grad, long row, int rows, int n) {
    vec a = ZERO;
    int y, x;
    for (y = 0; y < rows; y++, grad += row) for (x = 0; x < n; x++) a += grad[x];
    return a;
}

/* The products of a gradient's rows with inputs at one and at four places, summed; inputs are `step` apart. */
INLINE vec dot_rows(const vec *in, long in_row, long step, const vec *grad, long grad_row, int rows, int n) {
    vec a = ZERO, b = ZERO;
    int y, x;
    for (y = 0; y < rows; y++, in += in_row, grad += grad_row) {
        for (x = 0; x + 1 < n; x += 2) a += grad[x] * in[x * step], b += grad[x + 1] * in[(x + 1) * step];
        if (n & 1) a += grad[n - 1] * in[(n - 1) * step];
    }
    return a + b;
}

INLINE void dot_rows_4(const vec *in, const int32_t *place, long in_row, long step, const vec *grad, long grad_row,
                       int rows, int n, vec *RESTRICT sum) {
    const vec *p = in + place[0], *q = in + place[1], *r = in + place[2], *s = in + place[3];
    vec a = sum[0], b = sum[1], c = sum[2], d = sum[3];
    int y, x;
    for (y = 0; y < rows; y++, p += in_row, q += in_row, r += in_row, s += in_row, grad += grad_row) {
        for (x = 0; x < n; x++) {
            const vec g = grad[x];
            a += g * p[x * step], b += g * q[x * step], c += g * r[x * step], d += g * s[x * step];
        }
    }
    sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;
}
"""

POOL_2X2 = """\
/* One row of 2x2 maxima of two rows; the choice is 0 to 3, or 255 where a rectifier closes. */
INLINE void pool_rows(const vec *a, const vec *b, int n, vec *to, bvec *choice, int rectify) {
    int x;
    for (x = 0; x < n; x++) {
        vec top = a[2 * x];
        ivec at = {0}, above = a[2 * x + 1] > top;
        top = CHOOSE(above, a[2 * x + 1], top), at = ICHOOSE(above, ISPLAT(1), at);
        above = b[2 * x] > top;
        top = CHOOSE(above, b[2 * x], top), at = ICHOOSE(above, ISPLAT(2), at);
        above = b[2 * x + 1] > top;
        top = CHOOSE(above, b[2 * x + 1], top), at = ICHOOSE(above, ISPLAT(3), at);
        if (rectify) {
            const ivec open = top > 0.0f;
            top = KEEP(open, top), at = ICHOOSE(open, at, ISPLAT(255));
        }
        to[x] = top;
        choice[x] = BYTES(at);
    }
}

INLINE void unpool_rows(const vec *grad, const bvec *choice, int n, vec *a, vec *b) {
    int x;
    for (x = 0; x < n; x++) {
        const ivec at = WORDS(choice[x]);
        const vec g = grad[x];
        a[2 * x] = KEEP(at == 0, g), a[2 * x + 1] = KEEP(at == 1, g);
        b[2 * x] = KEEP(at == 2, g), b[2 * x + 1] = KEEP(at == 3, g);
    }
}
"""


def tiles(widths: Iterable[int]) -> str:
    """Kernels that make a number of neighboring elements in registers: bias plus weighted inputs."""
    return "\n".join(_tile(width) for width in sorted(widths))


def _tile(width: int) -> str:
    # A single element keeps four sums, which do not wait for each other.
    if width == 1:
        body = [
            "    vec a = ZERO, b = ZERO, c = ZERO, d = ZERO;",
            "    int k = 0;",
            "    if (mode & ADD) a = out[0]; else a += start;",
            "    for (; k + 3 < count; k += 4) {",
            "        a += weight[k] * in[place[k]], b += weight[k + 1] * in[place[k + 1]];",
            "        c += weight[k + 2] * in[place[k + 2]], d += weight[k + 3] * in[place[k + 3]];",
            "    }",
            "    for (; k < count; k++) a += weight[k] * in[place[k]];",
            "    a = (a + b) + (c + d);",
            "    (void)step, (void)to;",
        ]
    else:
        indices = range(width)
        body = [
            f"    vec {', '.join(f'a{i} = ZERO' for i in indices)};",
            "    int k;",
            "    if (mode & ADD) {",
            "        " + " ".join(f"a{i} = out[{i} * to];" for i in indices),
            "    } else {",
            "        " + " ".join(f"a{i} += start;" for i in indices),
            "    }",
            "    for (k = 0; k < count; k++) {",
            "        const vec *from = in + place[k];",
            "        const float w = weight[k];",
            "        " + " ".join(f"a{i} += w * from[{i} * step];" for i in indices),
            "    }",
        ]
    names = ["a"] if width == 1 else [f"a{i}" for i in range(width)]
    finish = [f"    out[{i} * to] = finish({name}, mode, slope, gate + {i} * to);" for i, name in enumerate(names)]
    return "\n".join(
        [
            f"INLINE void tile_{width}(const vec *in, long step, vec *out, long to, const int32_t *RESTRICT place,",
            "        const float *RESTRICT weight, int count, float start, int mode, float slope, const vec *gate) {",
            *body,
            *finish,
            "}\n",
        ]
    )


FINISH = """\
enum { PLAIN = 0, RECTIFY = 1, ADD = 2, GATE = 4 };

INLINE vec finish(vec value, int mode, float slope, const vec *gate) {
    /* What is not a number stays so, until the loss tells. */
    if (mode & RECTIFY && slope == 0.0f) value = KEEP(NOT(value <= 0.0f), value);
    else if (mode & RECTIFY) value = CHOOSE(value > 0.0f, value, value * slope);
    if (mode & GATE) value = slope == 0.0f ? KEEP(*gate > 0.0f, value) : CHOOSE(*gate > 0.0f, value, value * slope);
    return value;
}
"""
