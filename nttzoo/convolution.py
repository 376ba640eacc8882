"""A drop-in for `jax.lax.conv_general_dilated` that is fast on every backend.

On GPU and TPU it is XLA's own convolution. XLA's CPU convolution runs far below the speed of its matrix products, and
inside a loop a hundred times slower still, so on the CPU the patches are unfolded and multiplied.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

Ints = tuple[int, ...]


def conv_general_dilated(
    lhs: Float[Array, "n *space c"],
    rhs: Float[Array, "*window c_per_group o"],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    **options: Any,
) -> Float[Array, "n *out o"]:
    """`jax.lax.conv_general_dilated`, for the channels-last layout that `nnx.Conv` uses; any number of space axes."""
    space = lhs.ndim - 2
    ones = (1,) * space
    strides, inner, holes = tuple(window_strides), tuple(lhs_dilation or ones), tuple(rhs_dilation or ones)
    plain = all(options.get(name) is None for name in ("out_sharding", "preferred_element_type", "precision"))
    # lax refuses names of paddings together with an input dilation; leave that error to it.
    plain = plain and dimension_numbers == _channels_last(space) and not (isinstance(padding, str) and inner != ones)
    if jax.default_backend() != "cpu" or not plain or 0 in lhs.shape:
        return lax.conv_general_dilated(
            lhs, rhs, strides, padding, inner, holes, dimension_numbers, feature_group_count, **options
        )
    if isinstance(padding, str):
        reach = [(w - 1) * hole + 1 for w, hole in zip(rhs.shape[:space], holes, strict=True)]
        pads = lax.padtype_to_pads(lhs.shape[1:-1], reach, strides, padding)
    else:
        pads = list(padding)
    if any(lo or hi for lo, hi in pads) or inner != ones:
        gaps = [(0, 0, 0), *((lo, hi, d - 1) for (lo, hi), d in zip(pads, inner, strict=True)), (0, 0, 0)]
        lhs = lax.pad(lhs, jnp.zeros((), lhs.dtype), gaps)
    return _unfolded_conv(strides, holes, feature_group_count, lhs, rhs)


def _channels_last(space: int) -> lax.ConvDimensionNumbers:
    images = (0, space + 1, *range(1, space + 1))
    return lax.ConvDimensionNumbers(images, (space + 1, space, *range(space)), images)


def unfold(x: Float[Array, "n *space c"], window: Ints, strides: Ints, holes: Ints) -> Float[Array, "n *out k c"]:
    """The patches under each position of the window (no padding); k numbers the window's pixels in C order."""
    space = len(window)
    out = [(s - (w - 1) * h - 1) // d + 1 for s, w, h, d in zip(x.shape[1:-1], window, holes, strides, strict=True)]
    slices = []
    for offset in itertools.product(*map(range, window)):
        start = [o * h for o, h in zip(offset, holes, strict=True)]
        stop = [a + (n - 1) * d + 1 for a, n, d in zip(start, out, strides, strict=True)]
        slices.append(lax.slice(x, (0, *start, 0), (len(x), *stop, x.shape[-1]), (1, *strides, 1)))
    return jnp.stack(slices, space + 1)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _unfolded_conv(strides: Ints, holes: Ints, groups: int, x: Array, kernel: Array) -> Array:
    return _multiply(unfold(x, kernel.shape[:-2], strides, holes), kernel, groups)


@_unfolded_conv.defjvp
def _unfolded_conv_jvp(
    strides: Ints, holes: Ints, groups: int, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """The tangents are written so that their transposes, which make the gradient, are fast products too."""
    x, kernel = primals
    dx, dkernel = tangents
    patches = unfold(x, kernel.shape[:-2], strides, holes)
    from_x = _multiply(unfold(dx, kernel.shape[:-2], strides, holes), kernel, groups)
    from_kernel = _multiply_for_transpose(patches, dkernel, groups)
    return _multiply(patches, kernel, groups), from_x + from_kernel


def _multiply(patches: Float[Array, "n *out k c"], kernel: Float[Array, "*window cg o"], groups: int) -> Array:
    *lead, taps, channels = patches.shape
    outputs = kernel.shape[-1]
    if groups == 1:
        product = patches.reshape(-1, taps * channels) @ kernel.reshape(-1, outputs)
    else:
        grouped = patches.reshape(-1, taps, groups, channels // groups)
        weights = kernel.reshape(taps, channels // groups, groups, outputs // groups)
        product = jnp.einsum("pkgc,kcgo->pgo", grouped, weights)
    return product.reshape(*lead, outputs)


def _multiply_for_transpose(patches: Array, kernel: Array, groups: int) -> Array:
    """`_multiply`, in the form whose transpose with respect to the kernel is fast on the CPU."""
    *lead, taps, channels = patches.shape
    outputs = kernel.shape[-1]
    positions = math.prod(lead)
    if groups != 1 or positions % 2:
        return _multiply(patches, kernel, groups)
    # The kernel's gradient sums over very many positions. XLA does that twice as fast for [outputs, taps] as for its
    # transpose, and keeps two cores busy only if there are two such products.
    halves = patches.reshape(2, positions // 2, taps * channels)
    weights = jnp.broadcast_to(kernel.reshape(-1, outputs).T, (2, outputs, taps * channels))
    return jnp.einsum("bpk,bok->bpo", halves, weights).reshape(*lead, outputs)
