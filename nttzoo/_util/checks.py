"""Checks of arguments: each raises an `OptionError` that names the argument, its value and what was expected."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any

import jax
import numpy as np
from flax import nnx

from nttzoo.errors import ModelError, OptionError

FLOAT32_MAX = float(np.finfo(np.float32).max)


def check_seed(seed: Any, name: str = "seed") -> int:
    """A seed that JAX takes."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= int(seed) < 2**32:
        raise OptionError(f"{name} is {seed!r}; it must be a whole number from 0 to {2**32 - 1}.")
    return int(seed)


def check_count(name: str, value: Any, least: int = 1, most: int = 2**31 - 1) -> int:
    """A whole number that compiled code can count to."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise OptionError(f"{name} is {value!r}; it must be a whole number, {least} or more.")
    if int(value) > most:
        raise OptionError(f"{name} is {value!r}; it must be a whole number, {most} at most.")
    return int(value)


def check_number(name: str, value: Any, allowed: str, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite number from `low` to `high`, described in words by `allowed`; a round bracket there excludes its bound.

    Numbers beyond single precision would become infinite in compiled code.

    >>> check_number("validation", 0.1, "a fraction in [0, 1)", 0, 1)
    """
    size: Any = abs(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    number = size < math.inf
    if number and size > FLOAT32_MAX:
        raise OptionError(f"{name} is {value!r}; it must be {allowed}, and at most {FLOAT32_MAX:.1e} in size.")
    if number:
        above = value > low if "(" in allowed or "positive" in allowed else value >= low
        below = value < high if ")" in allowed else value <= high
        number = above and below
    if not number:
        raise OptionError(f"{name} is {value!r}; it must be {allowed}.")
    return value


def check_flag(name: str, value: Any) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} is {value!r}; it must be True or False.")
    return value


def check_text(name: str, value: Any) -> str:
    """A string that is not empty."""
    if not isinstance(value, str) or not value:
        raise OptionError(f"{name} is {value!r}; it must be a string that is not empty.")
    return value


def check_path(name: str, value: Any) -> None:
    """A path: a string or os.PathLike."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or "\0" in str(value):
        raise OptionError(f"{name} is {value!r}; it must be a path.")


def check_choice(option: str, value: object, choices: Sequence[str]) -> None:
    """One of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise OptionError(f"{option}={value!r} is not one of {', '.join(map(repr, choices))}.")


def check_texts(name: str, value: Any) -> tuple[str, ...]:
    """A list of strings."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable) or not all(isinstance(v, str) for v in value):
        hint = f": write {name}=[{value!r}]" if isinstance(value, str) else ""
        raise OptionError(f"{name} is {value!r}; it must be a list of strings{hint}.")
    return tuple(value)


def check_sequence(name: str, value: Any) -> tuple[Any, ...]:
    """A list or tuple."""
    if not isinstance(value, list | tuple):
        raise OptionError(f"{name} is {value!r}; it must be a list or tuple.")
    return tuple(value)


def check_shape(name: str, value: Any) -> tuple[int, ...]:
    """The shape of one example: a list of whole numbers, 1 or more."""
    whole = isinstance(value, list | tuple) and bool(value)
    if not whole or not all(isinstance(n, Integral) and not isinstance(n, bool) and int(n) >= 1 for n in value):
        raise OptionError(f"{name} is {value!r}; it must be a shape, such as (28, 28, 1), without the batch axis.")
    return tuple(int(n) for n in value)


def check_array(name: str, value: Any) -> None:
    """An array of numbers with at least one axis, or something that NumPy or JAX makes one of."""
    shape = getattr(value, "shape", None)
    if shape is None:
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise OptionError(f"{name} is not an array: {error}.") from error
        shape = value.shape
    if shape == () or (isinstance(value, np.ndarray) and value.dtype.kind in "OSU"):
        raise OptionError(f"{name} is {_shown(value)}; it must be an array [n, ...] of numbers.")


def check_finite(name: str, array: Any, *, least: float = -math.inf) -> None:
    """An array of finite numbers, none below `least`; values that are being traced are not known yet."""
    if isinstance(array, jax.core.Tracer):
        return
    # NumPy: under a transformation, JAX would trace the question too.
    values = np.asarray(array)
    if not (np.isfinite(values) & (values >= least)).all():
        bound = "" if least == -math.inf else f", and {least:g} or more"
        raise OptionError(f"{name} is {values.tolist()}; it must be finite{bound}.")


def check_model(name: str, value: Any) -> None:
    """An NNX model."""
    if not isinstance(value, nnx.Module):
        raise ModelError(f"{name} is {_shown(value)}; it must be an NNX model.")


def check_instance(name: str, value: Any, kind: type) -> None:
    """An object of a class."""
    if not isinstance(value, kind):
        raise OptionError(f"{name} is {_shown(value)}; it must be a {kind.__module__}.{kind.__qualname__}.")


def check_callable(name: str, value: Any) -> None:
    """A function."""
    if not callable(value):
        raise OptionError(f"{name} is {_shown(value)}; it must be a function.")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"a {type(value).__name__}"
