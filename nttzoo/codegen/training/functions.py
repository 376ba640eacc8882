"""Elementwise functions of a training step in C, with their derivatives: f_name and d_name."""

from __future__ import annotations

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
    # erf after Abramowitz and Stegun 7.1.26
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
