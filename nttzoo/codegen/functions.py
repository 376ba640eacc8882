"""Elementwise functions in C and in NumPy, and whether they commute with a maximum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# A function's name and its parameters, such as ("clip", 0.0, 6.0) or ("leaky_relu", 0.01).
Function = tuple[str, *tuple[float, ...]]

erf = np.vectorize(math.erf, otypes=[float])


def _no_parameters(*_: float) -> bool:
    return True


@dataclass(frozen=True)
class Elementwise:
    """A function of one number `x[i]`, and of parameters that the C expression uses by name."""

    c: str
    numpy: Callable[..., np.ndarray]
    parameters: tuple[str, ...] = ()
    never_decreases: Callable[..., bool] = _no_parameters
    uses_math: bool = True  # needs <math.h>


def _never(*_: float) -> bool:
    return False


FUNCTIONS: dict[str, Elementwise] = {
    "relu": Elementwise("x[i] < 0.0f ? 0.0f : x[i]", lambda x: np.maximum(x, 0), uses_math=False),
    "clip": Elementwise(
        "x[i] < low ? low : x[i] > high ? high : x[i]",
        lambda x, low, high: np.clip(x, low, high),
        ("low", "high"),
        uses_math=False,
    ),
    "sigmoid": Elementwise("1.0f / (1.0f + expf(-x[i]))", lambda x: 1 / (1 + np.exp(-x))),
    "tanh": Elementwise("tanhf(x[i])", np.tanh),
    "leaky_relu": Elementwise(
        "x[i] < 0.0f ? alpha * x[i] : x[i]",
        lambda x, alpha: np.where(x < 0, alpha * x, x),
        ("alpha",),
        lambda alpha: alpha >= 0,
        uses_math=False,
    ),
    "elu": Elementwise(
        "x[i] < 0.0f ? alpha * expm1f(x[i]) : x[i]",
        lambda x, alpha: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
        ("alpha",),
        lambda alpha: alpha >= 0,
    ),
    "gelu": Elementwise(
        "0.5f * x[i] * (1.0f + erff(0.70710678f * x[i]))",
        lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))),
        never_decreases=_never,
    ),
    "gelu_tanh": Elementwise(
        "0.5f * x[i] * (1.0f + tanhf(0.79788456f * x[i] * (1.0f + 0.044715f * x[i] * x[i])))",
        lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        never_decreases=_never,
    ),
    "silu": Elementwise("x[i] / (1.0f + expf(-x[i]))", lambda x: x / (1 + np.exp(-x)), never_decreases=_never),
    "hard_swish": Elementwise(
        "x[i] < -3.0f ? 0.0f : x[i] > 3.0f ? x[i] : x[i] * (x[i] + 3.0f) / 6.0f",
        lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        never_decreases=_never,
        uses_math=False,
    ),
    "exp": Elementwise("expf(x[i])", np.exp),
    "log": Elementwise("logf(x[i])", np.log, never_decreases=_never),
    "sqrt": Elementwise("sqrtf(x[i])", np.sqrt, never_decreases=_never),
    "square": Elementwise("x[i] * x[i]", np.square, never_decreases=_never, uses_math=False),
    "power": Elementwise("powf(x[i], exponent)", np.power, ("exponent",), never_decreases=_never),
    "abs": Elementwise("fabsf(x[i])", np.abs, never_decreases=_never),
    "sign": Elementwise("x[i] > 0.0f ? 1.0f : x[i] < 0.0f ? -1.0f : x[i]", np.sign, uses_math=False),
    "reciprocal": Elementwise("1.0f / x[i]", lambda x: 1 / x, never_decreases=_never, uses_math=False),
    "floor": Elementwise("floorf(x[i])", np.floor),
    "ceil": Elementwise("ceilf(x[i])", np.ceil),
    "round": Elementwise("rintf(x[i])", np.round),
    "erf": Elementwise("erff(x[i])", erf),
    "sin": Elementwise("sinf(x[i])", np.sin, never_decreases=_never),
    "cos": Elementwise("cosf(x[i])", np.cos, never_decreases=_never),
    "tan": Elementwise("tanf(x[i])", np.tan, never_decreases=_never),
    "asin": Elementwise("asinf(x[i])", np.arcsin, never_decreases=_never),
    "acos": Elementwise("acosf(x[i])", np.arccos, never_decreases=_never),
    "atan": Elementwise("atanf(x[i])", np.arctan),
    "sinh": Elementwise("sinhf(x[i])", np.sinh),
    "cosh": Elementwise("coshf(x[i])", np.cosh, never_decreases=_never),
    "asinh": Elementwise("asinhf(x[i])", np.arcsinh),
    "acosh": Elementwise("acoshf(x[i])", np.arccosh, never_decreases=_never),
    "atanh": Elementwise("atanhf(x[i])", np.arctanh, never_decreases=_never),
    "softplus": Elementwise(
        "x[i] > 0.0f ? x[i] + log1pf(expf(-x[i])) : log1pf(expf(x[i]))", lambda x: np.logaddexp(x, 0)
    ),
    "softsign": Elementwise("x[i] / (1.0f + fabsf(x[i]))", lambda x: x / (1 + np.abs(x))),
    "mish": Elementwise(
        "x[i] * tanhf(x[i] > 20.0f ? x[i] : log1pf(expf(x[i])))",
        lambda x: x * np.tanh(np.logaddexp(x, 0)),
        never_decreases=_never,
    ),
    "selu": Elementwise(
        "gamma * (x[i] < 0.0f ? alpha * expm1f(x[i]) : x[i])",
        lambda x, alpha, gamma: gamma * np.where(x < 0, alpha * np.expm1(np.minimum(x, 0)), x),
        ("alpha", "gamma"),
        lambda alpha, gamma: alpha >= 0 and gamma >= 0,
    ),
    "celu": Elementwise(
        "x[i] < 0.0f ? alpha * expm1f(x[i] / alpha) : x[i]",
        lambda x, alpha: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0) / alpha), x),
        ("alpha",),
        lambda alpha: alpha > 0,
    ),
    "hard_sigmoid": Elementwise(
        "alpha * x[i] + beta < 0.0f ? 0.0f : alpha * x[i] + beta > 1.0f ? 1.0f : alpha * x[i] + beta",
        lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1),
        ("alpha", "beta"),
        lambda alpha, beta: alpha >= 0,
        uses_math=False,
    ),
    "thresholded_relu": Elementwise(
        "x[i] > alpha ? x[i] : 0.0f",
        lambda x, alpha: np.where(np.isnan(x), x, np.where(x > alpha, x, 0)),
        ("alpha",),
        lambda alpha: alpha >= 0,
        uses_math=False,
    ),
}

# Functions of two numbers in C.
BINARY = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "max": "({0} > {1} ? {0} : {1})",
    "min": "({0} < {1} ? {0} : {1})",
    "pow": "powf({0}, {1})",
}


def apply(functions: list[Function], value: np.ndarray) -> np.ndarray:
    """Applies elementwise functions to an array; NaN stays NaN."""
    with np.errstate(all="ignore"):
        for name, *parameters in functions:
            value = FUNCTIONS[name].numpy(value, *parameters)
    return value


def never_decrease(functions: list[Function]) -> bool:
    """Whether the functions, one after the other, commute with taking a maximum."""
    return all(FUNCTIONS[name].never_decreases(*parameters) for name, *parameters in functions)
