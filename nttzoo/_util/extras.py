"""Packages that are not installed by default."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nttzoo.errors import ExportError


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Wraps imports of optional packages; if one is missing, the error says how to install it."""
    try:
        yield
    except ImportError as error:
        raise ExportError(f'the package {error.name} is missing: pip install "nttzoo[{name}]".') from error
