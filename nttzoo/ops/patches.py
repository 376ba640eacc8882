"""The patches under a convolution's window, and their inverse: `unfold` and `fold` are each other's transpose."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Num

Ints = tuple[int, ...]

# Unfolded patches of this many bytes stay in the cache between being written and being multiplied.
CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Window:
    """The geometry of a convolution without padding over images of the given `space`."""

    size: Ints
    strides: Ints
    holes: Ints
    space: Ints
    groups: int = 1
    winograd: bool = False  # how to compute it, and its transposes

    @property
    def out(self) -> Ints:
        """The space axes of the result."""
        axes = zip(self.space, self.size, self.holes, self.strides, strict=True)
        return tuple((s - (w - 1) * hole - 1) // stride + 1 for s, w, hole, stride in axes)

    def along(self, axis: int) -> list[tuple[int, int]]:
        """(start, stop) of the strided slice of a space axis that each pixel of the window covers."""
        hole, reach = self.holes[axis], (self.out[axis] - 1) * self.strides[axis] + 1
        return [(place * hole, place * hole + reach) for place in range(self.size[axis])]


def pad(
    x: Num[Array, "n *space c"],
    window: Ints,
    strides: Ints,
    padding: str | Sequence[tuple[int, int]],
    inner: Ints,
    holes: Ints,
) -> Num[Array, "n *padded c"]:
    """The images with a convolution's padding and input dilation (`inner`) applied."""
    if isinstance(padding, str):
        reach = [(w - 1) * hole + 1 for w, hole in zip(window, holes, strict=True)]
        padding = lax.padtype_to_pads(x.shape[1:-1], reach, strides, padding)
    gaps = [(lo, hi, d - 1) for (lo, hi), d in zip(padding, inner, strict=True)]
    if not any(map(any, gaps)):
        return x
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *gaps, (0, 0, 0)])


def unfold(x: Num[Array, "n *space c"], window: Window) -> Num[Array, "n *out k c"]:
    """The patches under each position of the window; k numbers the window's pixels."""
    return unfold_p.bind(x, window=window)


def fold(patches: Num[Array, "n *out k c"], window: Window) -> Num[Array, "n *space c"]:
    """The transpose of `unfold`: every pixel is the sum of its places in the patches."""
    return fold_p.bind(patches, window=window)


def _unfold(x: Array, *, window: Window) -> Array:
    # Axis by axis, the last first: contiguous pieces grow with every axis, and most copies are of whole rows.
    shape = (len(x), *window.out, math.prod(window.size), x.shape[-1])
    for axis in reversed(range(len(window.size))):
        stride = window.strides[axis]
        views = [lax.slice_in_dim(x, start, stop, stride, axis + 1) for start, stop in window.along(axis)]
        x = jnp.stack(views, -2).reshape(*views[0].shape[:-1], len(views) * x.shape[-1])
    return x.reshape(shape)


def _fold(patches: Array, *, window: Window) -> Array:
    # In a loop, so that XLA cannot fuse the sum into all of its users and recompute it in each.
    pieces = 2 if jax.default_backend() == "cpu" else 1
    return by_chunks(partial(sum_of_places, window=window), max(1, len(patches) // pieces), patches)


def sum_of_places(patches: Num[Array, "n *out k c"], window: Window) -> Num[Array, "n *space c"]:
    """`fold` as plain sums, for use within a loop over a few images at a time."""
    zero = jnp.zeros((), patches.dtype)
    total: Any = 0
    for k, slices in enumerate(itertools.product(*map(window.along, range(len(window.size))))):
        axes = zip(slices, window.space, window.strides, strict=True)
        around = [(start, space - stop, stride - 1) for (start, stop), space, stride in axes]
        view = lax.index_in_dim(patches, k, -2, keepdims=False)
        total = total + lax.pad(view, zero, [(0, 0, 0), *around, (0, 0, 0)])
    return total


def chunk_size(n: int, channels: int, window: Window, dtype: Any) -> int:
    """How many images to unfold at a time: as many as fit the cache, in pieces of nearly equal size."""
    one_image = math.prod(window.out) * math.prod(window.size) * channels * jnp.dtype(dtype).itemsize
    pieces = -(-n * one_image // CHUNK_BYTES)
    return max(1, n // max(1, pieces))


def by_chunks(of_chunk: Callable[[Array], Array], chunk: int, x: Array) -> Array:
    """`of_chunk` over the leading axis, a chunk at a time; a smaller last chunk follows."""
    if chunk >= len(x):
        return of_chunk(x)
    whole = len(x) // chunk * chunk
    y = lax.map(of_chunk, x[:whole].reshape(-1, chunk, *x.shape[1:]))
    y = y.reshape(whole, *y.shape[2:])
    return y if whole == len(x) else jnp.concatenate([y, of_chunk(x[whole:])])


def primitive_of(name: str, compute: Callable[..., Array]) -> Primitive:
    """A JAX primitive for `compute(*arrays, window=)`, as yet without derivatives and vmap."""
    primitive = Primitive(name)

    @cache
    def jitted(window: Window) -> Callable[..., Array]:
        return jax.jit(partial(compute, window=window))

    primitive.def_impl(lambda *arrays, window: jitted(window)(*arrays))

    def abstract(*arrays: Any, window: Window) -> Any:
        # Traced, not only shaped: inside shard_map a result also knows the mesh axes along which it varies.
        return jax.make_jaxpr(partial(compute, window=window))(*arrays).out_avals[0]

    primitive.def_abstract_eval(abstract)
    mlir.register_lowering(primitive, mlir.lower_fun(compute, multiple_results=False))
    return primitive


unfold_p = primitive_of("nttzoo_unfold", _unfold)
fold_p = primitive_of("nttzoo_fold", _fold)

ad.deflinear2(unfold_p, lambda ct, x, *, window: [fold_p.bind(ct, window=window)])
ad.deflinear2(fold_p, lambda ct, patches, *, window: [unfold_p.bind(ct, window=window)])


def _batch(primitive: Primitive, args: Any, dims: Any, *, window: Window) -> tuple[Array, int]:
    """vmap: the new axis joins the images."""
    images = jnp.moveaxis(args[0], dims[0], 0)
    y = primitive.bind(images.reshape(-1, *images.shape[2:]), window=window)
    return y.reshape(*images.shape[:2], *y.shape[1:]), 0


batching.primitive_batchers[unfold_p] = partial(_batch, unfold_p)
batching.primitive_batchers[fold_p] = partial(_batch, fold_p)
