"""Convolutions of each channel by itself, as sums of shifted images: patches would be nine times as large."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from nttzoo.ops.patches import Window


def conv(x: Float[Array, "n *space c"], kernel: Float[Array, "*size 1 o"], window: Window) -> Float[Array, "n *out o"]:
    """Output c * m + j is channel c under the j-th of its m windows."""
    taps = _taps(kernel, window)
    total: Any = 0
    for tap, view in zip(taps, _views(x, window), strict=True):
        total = total + view[..., None] * tap.reshape(*(1,) * (x.ndim - 1), *tap.shape)
    return total.reshape(*total.shape[:-2], -1)


def conv_to_images(
    g: Float[Array, "n *out o"], kernel: Float[Array, "*size 1 o"], window: Window
) -> Float[Array, "n *space c"]:
    """The transpose with respect to the images: the mirrored windows over g, with zeros between and around."""
    axes = list(zip(window.space, window.out, window.size, window.holes, window.strides, strict=True))
    around = []
    for space, out, size, hole, stride in axes:
        reach = (size - 1) * hole
        around.append((reach, space - ((out - 1) * stride + 1), stride - 1))
    spread = lax.pad(g, jnp.zeros((), g.dtype), [(0, 0, 0), *around, (0, 0, 0)])
    spread = spread.reshape(*spread.shape[:-1], window.groups, -1)
    ones = (1,) * len(axes)
    mirrored = Window(window.size, ones, window.holes, spread.shape[1:-2], window.groups)
    total: Any = 0
    for tap, view in zip(_taps(kernel, window)[::-1], _views(spread, mirrored), strict=True):
        total = total + view * tap.reshape(*(1,) * (g.ndim - 1), *tap.shape)
    return total.sum(-1)


def conv_to_kernel(
    x: Float[Array, "n *space c"], g: Float[Array, "n *out o"], window: Window
) -> Float[Array, "*size 1 o"]:
    """The transpose with respect to the kernel."""
    g = g.reshape(*g.shape[:-1], window.groups, -1)
    # First over the images: XLA sums whole images three times as fast as all leading axes at once.
    rows = [(view[..., None] * g).sum(0).sum(range(g.ndim - 3)).reshape(-1) for view in _views(x, window)]
    return jnp.stack(rows).reshape(*window.size, 1, -1)


def _taps(kernel: Array, window: Window) -> Float[Array, "k c m"]:
    return kernel.reshape(math.prod(window.size), window.groups, -1)


def _views(x: Array, window: Window) -> list[Array]:
    """The images shifted by each pixel of the window, in the order of the kernel's pixels."""
    views = []
    for slices in itertools.product(*map(window.along, range(len(window.size)))):
        view = x
        for axis, (start, stop) in enumerate(slices):
            view = lax.slice_in_dim(view, start, stop, window.strides[axis], axis + 1)
        views.append(view)
    return views
