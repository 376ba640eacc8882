"""Packages of the extra `onnx`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nttzoo.errors import ExportError


@contextmanager
def onnx_packages() -> Iterator[None]:
    """Imports that need an extra: a missing package is answered with how to install it."""
    try:
        yield
    except ImportError as error:
        raise ExportError(f'this needs {error.name}: pip install "nttzoo[onnx]".') from error
