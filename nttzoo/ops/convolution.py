"""A drop-in replacement for `jax.lax.conv_general_dilated` that is fast on every backend.

On GPU and TPU it is XLA's own convolution. XLA's CPU convolution is much slower than its matrix products, and another
hundred times slower inside a loop. On the CPU, 3x3 windows therefore use Winograd's algorithm; for others, patches are
unfolded and multiplied, a few images at a time to stay in the cache. Depthwise convolutions are sums of shifts.

A convolution and its two transposes, with respect to the images and to the kernel, are closed under differentiation:
each is bilinear and the transposes of each are the others. As three JAX primitives they are fast at every order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jaxtyping import Array, Num

from nttzoo.ops import depthwise, patches, winograd
from nttzoo.ops.patches import Window, by_chunks, chunk_size, primitive_of

# With fewer channels Winograd's transforms take longer than the products that they save; with larger tiles than this,
# memory bandwidth limits them.
WINOGRAD_CHANNELS = 16
WINOGRAD_BYTES = 2**28

_unfolding: ContextVar[bool] = ContextVar("unfolding", default=False)


@contextmanager
def unfolding() -> Iterator[None]:
    """A context in which traced convolutions unfold images: faster for tangent kernels, which have second
    derivatives."""
    token = _unfolding.set(True)
    try:
        yield
    finally:
        _unfolding.reset(token)


def conv_general_dilated(
    lhs: Num[Array | np.ndarray, "..."],
    rhs: Num[Array | np.ndarray, "..."],
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    **options: Any,
) -> Num[Array, "..."]:
    """`jax.lax.conv_general_dilated`, for the channels-last layout that `nnx.Conv` uses; any number of space axes."""
    lhs, rhs = jnp.asarray(lhs), jnp.asarray(rhs)
    space = lhs.ndim - 2
    ones = (1,) * space
    strides, inner, holes = tuple(window_strides), tuple(lhs_dilation or ones), tuple(rhs_dilation or ones)
    plain = all(value is None for value in options.values())
    # lax raises for a named padding with an input dilation: it reports that error.
    plain = plain and dimension_numbers == _channels_last(space) and not (isinstance(padding, str) and inner != ones)
    # lax reports shapes that do not fit.
    plain = plain and lhs.shape[-1] == rhs.shape[-2] * feature_group_count and rhs.shape[-1] % feature_group_count == 0
    if jax.default_backend() == "cpu" and plain and 0 not in lhs.shape and lhs.dtype == rhs.dtype:
        padded = patches.pad(lhs, rhs.shape[:space], strides, padding, inner, holes)
        window = Window(rhs.shape[:space], strides, holes, padded.shape[1:-1], feature_group_count)
        if all(n > 0 for n in window.out):  # otherwise the window is larger than the images
            quick = not _unfolding.get() and _suits_winograd(window, len(lhs), lhs.shape[-1], rhs.shape[-1], lhs.dtype)
            return conv_p.bind(*varying_alike(padded, rhs), window=replace(window, winograd=quick))
    return lax.conv_general_dilated(
        lhs, rhs, strides, padding, inner, holes, dimension_numbers, feature_group_count, **options
    )


def varying_alike(*arrays: Array) -> list[Array]:
    """The arrays, made to vary along all mesh axes along which any of them varies; relevant only in `jax.shard_map`."""
    axes = [jax.typeof(array).manual_axis_type.varying for array in arrays]
    every = frozenset().union(*axes)
    return [
        lax.pcast(array, tuple(every - own), to="varying") if every - own else array
        for array, own in zip(arrays, axes, strict=True)
    ]


def _suits_winograd(window: Window, n: int, channels: int, outputs: int, dtype: Any) -> bool:
    """Whether Winograd's algorithm applies and needs fewer products; half precision would lose too much accuracy."""
    plain = window.size == (3, 3) and window.strides == window.holes == (1, 1) and window.groups == 1
    size = jnp.dtype(dtype).itemsize if jnp.issubdtype(dtype, jnp.floating) else 0
    tiles = 4 * n * math.prod(window.out) * (channels + outputs) * size
    return plain and min(channels, outputs) >= WINOGRAD_CHANNELS and size >= 4 and 0 < tiles <= WINOGRAD_BYTES


def _channels_last(space: int) -> lax.ConvDimensionNumbers:
    images = (0, space + 1, *range(1, space + 1))
    return lax.ConvDimensionNumbers(images, (space + 1, space, *range(space)), images)


def _conv(x: Array, kernel: Array, *, window: Window) -> Array:
    """Images [n, *space, c], kernel [*size, c / groups, o] -> [n, *out, o]."""
    if window.winograd:
        return winograd.conv(x, kernel)
    if _is_depthwise(kernel, window):
        return depthwise.conv(x, kernel, window)

    def of_chunk(x: Array) -> Array:
        product = _multiply("pgk,gko->pgo", _grouped_patches(x, window), _grouped_kernel(kernel, window))
        return product.reshape(len(x), *window.out, kernel.shape[-1])

    return by_chunks(of_chunk, chunk_size(len(x), x.shape[-1], window, x.dtype), x)


def _conv_to_images(g: Array, kernel: Array, *, window: Window) -> Array:
    """The transpose with respect to the images: g [n, *out, o], kernel -> [n, *space, c]."""
    if window.winograd:
        return winograd.conv_to_images(g, kernel)
    if _is_depthwise(kernel, window):
        return depthwise.conv_to_images(g, kernel, window)
    groups, taps, channels = window.groups, math.prod(window.size), kernel.shape[-2] * window.groups

    def of_chunk(g: Array) -> Array:
        outputs = g.reshape(-1, groups, g.shape[-1] // groups)
        parts = _multiply("pgo,gko->pgk", outputs, _grouped_kernel(kernel, window))
        parts = parts.reshape(-1, groups, taps, channels // groups).swapaxes(1, 2)
        return patches.sum_of_places(parts.reshape(len(g), *window.out, taps, channels), window)

    return by_chunks(of_chunk, chunk_size(len(g), channels, window, g.dtype), g)


def _conv_to_kernel(x: Array, g: Array, *, window: Window) -> Array:
    """The transpose with respect to the kernel: x [n, *space, c], g [n, *out, o] -> [*size, c / groups, o]."""
    if window.winograd:
        return winograd.conv_to_kernel(x, g)
    if 1 < window.groups == x.shape[-1]:
        return depthwise.conv_to_kernel(x, g, window)
    n, groups, channels, outputs = len(x), window.groups, x.shape[-1], g.shape[-1]

    def of_chunk(x: Array, g: Array) -> Array:
        # XLA multiplies this order of the axes faster than its transpose.
        return _multiply("pgo,pgk->gok", g.reshape(-1, groups, outputs // groups), _grouped_patches(x, window))

    chunk = chunk_size(n, channels, window, x.dtype)
    whole = n // chunk * chunk
    pieces = (x[:whole].reshape(-1, chunk, *x.shape[1:]), g[:whole].reshape(-1, chunk, *g.shape[1:]))
    start = of_chunk(x[whole:], g[whole:])  # zeros, if no rest is left
    total, _ = lax.scan(lambda total, piece: (total + of_chunk(*piece), None), start, pieces)
    return total.transpose(2, 0, 1).reshape(*window.size, channels // groups, outputs)


def _is_depthwise(kernel: Array, window: Window) -> bool:
    return window.groups > 1 and kernel.shape[-2] == 1


def _grouped_patches(x: Array, window: Window) -> Num[Array, "p g k"]:
    unfolded, groups = patches.unfold(x, window), window.groups
    taps, channels = unfolded.shape[-2:]
    return (
        unfolded.reshape(-1, taps, groups, channels // groups)
        .swapaxes(1, 2)
        .reshape(-1, groups, taps * channels // groups)
    )


def _grouped_kernel(kernel: Array, window: Window) -> Num[Array, "g k o"]:
    return kernel.reshape(-1, window.groups, kernel.shape[-1] // window.groups).swapaxes(0, 1)


def _multiply(subscripts: str, one: Array, two: Array) -> Array:
    """An einsum over arrays with a group axis g, which is left out where there is but one group."""
    if "g" in subscripts and 1 in (one.shape[subscripts.index("g")],):
        inputs, result = subscripts.split("->")
        axes = [term.index("g") for term in inputs.split(",")]
        product = jnp.einsum(subscripts.replace("g", ""), one.squeeze(axes[0]), two.squeeze(axes[1]))
        return jnp.expand_dims(product, result.index("g"))
    return jnp.einsum(subscripts, one, two)


conv_p = primitive_of("nttzoo_conv", _conv)
conv_to_images_p = primitive_of("nttzoo_conv_to_images", _conv_to_images)
conv_to_kernel_p = primitive_of("nttzoo_conv_to_kernel", _conv_to_kernel)

ad.defbilinear(
    conv_p,
    lambda ct, x, kernel, *, window: conv_to_images_p.bind(ct, kernel, window=window),
    lambda ct, x, kernel, *, window: conv_to_kernel_p.bind(x, ct, window=window),
)
ad.defbilinear(
    conv_to_images_p,
    lambda ct, g, kernel, *, window: conv_p.bind(ct, kernel, window=window),
    lambda ct, g, kernel, *, window: conv_to_kernel_p.bind(ct, g, window=window),
)
ad.defbilinear(
    conv_to_kernel_p,
    lambda ct, x, g, *, window: conv_to_images_p.bind(g, ct, window=window),
    lambda ct, x, g, *, window: conv_p.bind(x, ct, window=window),
)


def _batch_over_images(primitive: Primitive, args: Any, dims: Any, *, window: Window) -> tuple[Array, int]:
    """vmap of images with one kernel: the new axis joins the images. Any other vmap: one after the other."""
    (images, kernel), (axis, kernel_axis) = args, dims
    if kernel_axis is not None:
        return batch_by_loop(primitive, args, dims, window=window)
    images = jnp.moveaxis(images, axis, 0)
    # For more images, another algorithm may be chosen.
    count = images.shape[0] * images.shape[1]
    suits = window.winograd and _suits_winograd(window, count, kernel.shape[-2], kernel.shape[-1], images.dtype)
    window = replace(window, winograd=suits)
    y = primitive.bind(images.reshape(-1, *images.shape[2:]), kernel, window=window)
    return y.reshape(*images.shape[:2], *y.shape[1:]), 0


def batch_by_loop(primitive: Primitive, args: Any, dims: Any, *, window: Window) -> tuple[Array, int]:
    """vmap as a loop."""
    mapped = [jnp.moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True) if d is not None]

    def one(pieces: list[Array]) -> Array:
        rest = iter(pieces)
        whole = (a if d is None else next(rest) for a, d in zip(args, dims, strict=True))
        return primitive.bind(*whole, window=window)

    return lax.map(one, mapped), 0


batching.primitive_batchers[conv_p] = partial(_batch_over_images, conv_p)
batching.primitive_batchers[conv_to_images_p] = partial(_batch_over_images, conv_to_images_p)
batching.primitive_batchers[conv_to_kernel_p] = partial(batch_by_loop, conv_to_kernel_p)
