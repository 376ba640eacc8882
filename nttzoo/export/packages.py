"""Packages of the extra `onnx`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from nttzoo._util.extras import extra


def onnx_packages() -> AbstractContextManager[None]:
    """Wraps imports that need the extra `onnx`; if a package is missing, the error says how to install it."""
    return extra("onnx")
