"""Checks of arguments that many functions share."""

from __future__ import annotations

from numbers import Integral

from nttzoo.errors import OptionError


def check_seed(seed: int) -> int:
    """The seed, if JAX takes it for one."""
    if not isinstance(seed, Integral) or not 0 <= seed < 2**32:
        raise OptionError(f"seed is {seed!r}; it must be a whole number from 0 to {2**32 - 1}.")
    return seed


def check_choice(option: str, value: object, choices: tuple[str, ...]) -> None:
    """Raises unless the value is one of the choices."""
    if value not in choices:
        raise OptionError(f"{option}={value!r} is not one of {', '.join(map(repr, choices))}.")
