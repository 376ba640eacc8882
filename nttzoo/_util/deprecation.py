"""Old names that keep working for one release, with a warning."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def renamed(module: str, names: Mapping[str, str]) -> Callable[[str], Any]:
    """A module's `__getattr__` that answers old names ({old: new}) with what now has the new name."""

    def lookup(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        _warn(f"{module}.{name}", f"{module}.{names[name]}")
        return getattr(sys.modules[module], names[name])

    return lookup


def renamed_method(old: str, new: str) -> Callable[..., Any]:
    """A method that calls the one with the new name."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        _warn(f"{type(self).__name__}.{old}", f"{type(self).__name__}.{new}")
        return getattr(self, new)(*args, **kwargs)

    return call


def renamed_attribute(old: str, new: str) -> property:
    """A property that reads the attribute with the new name."""

    def read(self: Any) -> Any:
        _warn(f"{type(self).__name__}.{old}", f"{type(self).__name__}.{new}")
        return getattr(self, new)

    return property(read)


def renamed_argument(old: str, new: str) -> Callable[[F], F]:
    """Decorates a function whose keyword argument `old` is now called `new`."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if old in kwargs:
                if new in kwargs:
                    raise TypeError(f"{function.__qualname__}() got both {new!r} and its old name {old!r}")
                _warn(f"{function.__qualname__}({old}=...)", f"{new}=...")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


def _warn(old: str, new: str) -> None:
    warnings.warn(f"{old} is deprecated and will be removed in 0.3; use {new}.", DeprecationWarning, stacklevel=3)
