"""Packages of the extra `onnx`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from nttzoo._util.extras import extra


def onnx_packages() -> AbstractContextManager[None]:
    """For imports that need the extra `onnx`: a missing package is answered with how to install it."""
    return extra("onnx")
