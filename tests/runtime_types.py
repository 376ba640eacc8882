"""Checks array types while tests run: jaxtyping's import hook, with beartype, for functions that name shapes.

jaxtyping checks arguments before a call, and arguments with the result after it. Here only the second check counts: an
argument of a wrong type is the function's own to refuse, with an error that says what to do, and tests want to see that
error. If the function takes it and returns, it is a violation.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, get_args

import jaxtyping
from beartype import BeartypeConf, beartype

CONFIG = BeartypeConf(is_pep484_tower=True)  # an int is a float, as for mypy
_decorate = jaxtyping.jaxtyped


def install(package: str) -> None:
    """Has the calls of all functions of a package checked that will be imported from now on."""
    # To look at every function, as the hook does, would take longer than the tests of some folders.
    jaxtyping.jaxtyped = _decorate_if_arrays
    jaxtyping.install_import_hook(package, "runtime_types.check")


def check(function: Callable[..., Any]) -> Callable[..., Any]:
    """Has beartype check a call of jaxtyping's that has what a function returned as its last argument."""
    code = function.__code__
    last = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount][-1:]
    return beartype(conf=CONFIG)(function) if last and last[0].startswith("ret") else function


def _decorate_if_arrays(function: Any = None, *, typechecker: Any) -> Any:
    if function is None:
        return functools.partial(_decorate_if_arrays, typechecker=typechecker)
    # Not dataclasses: JAX makes those that are trees of anything, such as shapes.
    if isinstance(function, type) or not _names_arrays(function):
        return function
    return _decorate(function, typechecker=typechecker)


def _names_arrays(function: Any) -> bool:
    """Whether a shape stands in the annotations of a function, or behind one of the names in them."""
    inner = getattr(function, "__func__", None) or getattr(function, "fget", None) or function
    words = {word for text in inner.__annotations__.values() for word in re.findall(r'\w+|"', str(text))}
    return '"' in words or any(_has_array(inner.__globals__.get(word)) for word in words)


def _has_array(annotation: Any) -> bool:
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_has_array, get_args(annotation)))
