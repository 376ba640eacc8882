"""C code that all networks share: vector types, and the kernels that read the tables."""

from __future__ import annotations

from nttzoo.codegen.functions import FUNCTIONS, Elementwise

LARGEST_BLOCK = 64  # examples

# Vector types are an extension of GCC and Clang. With other compilers, and on targets without vector units, the same
# code processes one float at a time.
PREAMBLE = """\
#include <stdint.h>
@MATH@
#ifdef __cplusplus
#define RESTRICT __restrict
#else
#define RESTRICT restrict
#endif

#if defined(__GNUC__) && defined(__AVX512F__)
#define LANES 16
#elif defined(__GNUC__) && defined(__AVX__)
#define LANES 8
#elif defined(__GNUC__) && (defined(__SSE2__) || defined(__ARM_NEON) || defined(__wasm_simd128__))
#define LANES 4
#else
#define LANES 1
#endif

#if LANES > 1
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#else
typedef float lanes;
#endif
"""

_SUM = """\
/* to[i] = bias + sum of weight[k] * in[place[k] * unit + i] for i < n; up to LANES - 1 more floats are written. */
static void sum_planes_@(const float *in, float *RESTRICT to, const uint@_t *RESTRICT place, int unit,
                         const float *RESTRICT weight, int count, float bias, int n) {
    int i = 0, k;
    for (; i + 3 * LANES < n; i += 4 * LANES) {
        lanes a = {0}, b = {0}, c = {0}, d = {0};
        a += bias, b += bias, c += bias, d += bias;
        for (k = 0; k < count; k++) {
            const float *from = in + (long)place[k] * unit + i;
            const float w = weight[k];
            a += w * *(const lanes *)from;
            b += w * *(const lanes *)(from + LANES);
            c += w * *(const lanes *)(from + 2 * LANES);
            d += w * *(const lanes *)(from + 3 * LANES);
        }
        *(lanes *)(to + i) = a;
        *(lanes *)(to + i + LANES) = b;
        *(lanes *)(to + i + 2 * LANES) = c;
        *(lanes *)(to + i + 3 * LANES) = d;
    }
    for (; n - i > 0; i += LANES) {
        lanes a = {0};
        a += bias;
        for (k = 0; k < count; k++) a += weight[k] * *(const lanes *)(in + (long)place[k] * unit + i);
        *(lanes *)(to + i) = a;
    }
}
"""

_SUM_BLOCK = """\
/* The same for one element of a block, `unit` floats; four partial sums, so that additions are independent. */
static void sum_block_@(const float *in, float *RESTRICT to, const uint@_t *RESTRICT place, int unit,
                        const float *RESTRICT weight, int count, float bias) {
    int i, k;
    for (i = 0; i < unit; i += LANES) {
        const float *from = in + i;
        lanes a = {0}, b = {0}, c = {0}, d = {0};
        a += bias;
        for (k = 0; k + 3 < count; k += 4) {
            a += weight[k] * *(const lanes *)(from + (long)place[k] * unit);
            b += weight[k + 1] * *(const lanes *)(from + (long)place[k + 1] * unit);
            c += weight[k + 2] * *(const lanes *)(from + (long)place[k + 2] * unit);
            d += weight[k + 3] * *(const lanes *)(from + (long)place[k + 3] * unit);
        }
        for (; k < count; k++) a += weight[k] * *(const lanes *)(from + (long)place[k] * unit);
        *(lanes *)(to + i) = (a + b) + (c + d);
    }
}
"""

_DOT = """\
/* bias + sum of weight[k] * in[place[k]]; four partial sums, so that additions are independent. */
static float dot_@(const float *RESTRICT in, const uint@_t *RESTRICT place, const float *RESTRICT weight, int count,
                   float bias) {
    float a = bias, b = 0.0f, c = 0.0f, d = 0.0f;
    int k = 0;
    for (; k + 3 < count; k += 4) {
        a += weight[k] * in[place[k]];
        b += weight[k + 1] * in[place[k + 1]];
        c += weight[k + 2] * in[place[k + 2]];
        d += weight[k + 3] * in[place[k + 3]];
    }
    for (; k < count; k++) a += weight[k] * in[place[k]];
    return (a + b) + (c + d);
}
"""

_POOL = """\
static void @_pool(const float *in, float *to, int height, int width, int row, int out_height, int out_width, int kh,
                   int kw, int sy, int sx, int top, int left@COUNTED@) {
    int y, x, i, j;
    for (y = 0; y < out_height; y++) {
        for (x = 0; x < out_width; x++) {
            const int y0 = y * sy - top, x0 = x * sx - left;
            const int yb = y0 < 0 ? 0 : y0, ye = y0 + kh > height ? height : y0 + kh;
            const int xb = x0 < 0 ? 0 : x0, xe = x0 + kw > width ? width : x0 + kw;
            float value = @START@;
            for (i = yb; i < ye; i++) {
                for (j = xb; j < xe; j++) {
                    const float seen = in[i * row + j];
                    @TAKE@
                }
            }
            to[y * out_width + x] = @END@;
        }
    }
}
"""


_POOL_BLOCK = """\
static void @_pool_block(const float *in, float *to, int height, int width, int row, int out_height, int out_width,
                         int kh, int kw, int sy, int sx, int top, int left@COUNTED@, int unit) {
    int y, x, i, j, e;
    for (y = 0; y < out_height; y++) {
        for (x = 0; x < out_width; x++, to += unit) {
            const int y0 = y * sy - top, x0 = x * sx - left;
            const int yb = y0 < 0 ? 0 : y0, ye = y0 + kh > height ? height : y0 + kh;
            const int xb = x0 < 0 ? 0 : x0, xe = x0 + kw > width ? width : x0 + kw;
            for (e = 0; e < unit; e++) to[e] = @START@;
            for (i = yb; i < ye; i++) {
                for (j = xb; j < xe; j++) {
                    const float *from = in + (long)(i * row + j) * unit;
                    for (e = 0; e < unit; e++) {
                        const float seen = from[e];
                        float value = to[e];
                        @TAKE@
                        to[e] = value;
                    }
                }
            }
            for (e = 0; e < unit; e++) {
                const float value = to[e];
                to[e] = @END@;
            }
        }
    }
}
"""


def _pools(name: str, start: str, take: str, end: str, counted: str = "") -> dict[str, str]:
    """A kind of pooling, for one example and for a block."""
    found = {}
    for suffix, text, first in (
        ("", _POOL, "in[yb * row + xb]"),
        ("_block", _POOL_BLOCK, "in[(long)(yb * row + xb) * unit + e]"),
    ):
        parts = {"@START@": start, "@FIRST@": first, "@TAKE@": take, "@END@": end, "@COUNTED@": counted, "@": name}
        for mark, part in parts.items():
            text = text.replace(mark, part)
        found[f"{name}_pool{suffix}"] = text
    return found


def _apply(name: str, function: Elementwise) -> str:
    parameters = "".join(f", float {parameter}" for parameter in function.parameters)
    return (
        f"static void apply_{name}(float *x, int n{parameters}) {{\n"
        f"    int i;\n    for (i = 0; i < n; i++) x[i] = {function.c};\n}}\n"
    )


TEXTS = {
    "sum16": _SUM.replace("@", "16"),
    "sum32": _SUM.replace("@", "32"),
    "sum_block16": _SUM_BLOCK.replace("@", "16"),
    "sum_block32": _SUM_BLOCK.replace("@", "32"),
    "dot16": _DOT.replace("@", "16"),
    "dot32": _DOT.replace("@", "32"),
    "max_pool_2x2": """\
static void max_pool_2x2(const float *RESTRICT in, int row, float *RESTRICT to, int height, int width) {
    int y, x;
    for (y = 0; y < height; y++) {
        const float *a = in + 2 * y * row, *b = a + row;
        for (x = 0; x < width; x++) {
            const float p = a[2 * x] > a[2 * x + 1] ? a[2 * x] : a[2 * x + 1];
            const float q = b[2 * x] > b[2 * x + 1] ? b[2 * x] : b[2 * x + 1];
            to[y * width + x] = p > q ? p : q;
        }
    }
}
""",
    "max_pool_2x2_block": """\
static void max_pool_2x2_block(const float *RESTRICT in, int row, float *RESTRICT to, int height, int width,
                               int unit) {
    int y, x, e;
    for (y = 0; y < height; y++) {
        for (x = 0; x < width; x++, to += unit) {
            const float *a = in + (2L * y * row + 2 * x) * unit, *b = a + (long)row * unit;
            for (e = 0; e < unit; e++) {
                const float p = a[e] > a[unit + e] ? a[e] : a[unit + e];
                const float q = b[e] > b[unit + e] ? b[e] : b[unit + e];
                to[e] = p > q ? p : q;
            }
        }
    }
}
""",
    **_pools("max", "@FIRST@", "value = seen > value ? seen : value;", "value"),
    **_pools(
        "average",
        "0.0f",
        "value += seen;",
        "value / (float)(counted ? kh * kw : (ye - yb) * (xe - xb))",
        ", int counted",
    ),
    "group_norm": """\
/* Normalizes a group of channels to mean 0 and variance 1, then scales and shifts each channel. Rounding errors would
 * accumulate in sums of many nearly equal floats: these are relative to the first float and to the mean, in sixteen
 * partial sums. */
static void group_norm(const float *in, float *to, int channels, int size, const float *scale, const float *bias,
                       float epsilon) {
    const int count = channels * size;
    const float first = in[0];
    float parts[16] = {0.0f}, mean = 0.0f, variance = 0.0f;
    int c, i;
    for (i = 0; i < count; i++) parts[i % 16] += in[i] - first;
    for (i = 0; i < 16; i++) mean += parts[i];
    mean /= (float)count;
    for (i = 0; i < 16; i++) parts[i] = 0.0f;
    for (i = 0; i < count; i++) {
        const float x = in[i] - first - mean;
        parts[i % 16] += x * x;
    }
    for (i = 0; i < 16; i++) variance += parts[i];
    variance /= (float)count;
    for (c = 0; c < channels; c++) {
        const float slope = scale[c] / sqrtf(variance + epsilon);
        for (i = c * size; i < (c + 1) * size; i++) to[i] = (in[i] - first - mean) * slope + bias[c];
    }
}
""",
    "group_norm_block": """\
static void group_norm_block(const float *in, float *to, int channels, int size, const float *scale, const float *bias,
                             float epsilon, int unit) {
    const int count = channels * size;
    float first[MOST] = {0}, part[MOST] = {0}, mean[MOST] = {0}, slope[MOST] = {0};
    int c, i, e;
    for (e = 0; e < unit; e++) first[e] = in[e];
    for (i = 0; i < count; i++) {
        for (e = 0; e < unit; e++) part[e] += in[(long)i * unit + e] - first[e];
        if (i % 32 < 31 && i < count - 1) continue;
        for (e = 0; e < unit; e++) mean[e] += part[e], part[e] = 0.0f;
    }
    for (e = 0; e < unit; e++) mean[e] /= (float)count;
    for (i = 0; i < count; i++) {
        for (e = 0; e < unit; e++) {
            const float x = in[(long)i * unit + e] - first[e] - mean[e];
            part[e] += x * x;
        }
        if (i % 32 < 31 && i < count - 1) continue;
        for (e = 0; e < unit; e++) slope[e] += part[e], part[e] = 0.0f;
    }
    for (e = 0; e < unit; e++) slope[e] = 1.0f / sqrtf(slope[e] / (float)count + epsilon);
    for (c = 0; c < channels; c++) {
        for (i = c * size; i < (c + 1) * size; i++) {
            for (e = 0; e < unit; e++) {
                const long at = (long)i * unit + e;
                to[at] = (in[at] - first[e] - mean[e]) * (slope[e] * scale[c]) + bias[c];
            }
        }
    }
}
""".replace("MOST", str(LARGEST_BLOCK)),
    **{name: _apply(name, function) for name, function in FUNCTIONS.items()},
}
