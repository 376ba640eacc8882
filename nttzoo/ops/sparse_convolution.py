"""Convolutions that skip pruned weights, on CPUs.

Like the dense ones (`ops/convolution`) they are three bilinear primitives, closed under differentiation; here all three
also take the kernel's mask, beyond which weights count as zero and have no derivative. They are calls of C++
(sparse_convolution.cc), which the system's compiler compiles when it is first needed. Arrays have the shapes that they
have in dense convolutions: which weights survive, and how many, may change from call to call.
"""

from __future__ import annotations

import ctypes
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
from jax.extend.core import Primitive
from jax.interpreters import ad, batching
from jaxtyping import Array, Bool, Float

from nttzoo._util.libraries import shared_library
from nttzoo.errors import ExportError
from nttzoo.ops.convolution import batch_by_loop
from nttzoo.ops.patches import Window, primitive_of

FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", f"-DJAXLIB={jaxlib.__version__}")
_HANDLERS = ("nttzoo_sparse_conv", "nttzoo_sparse_conv_to_kernel")


def suits(window: Window, dtype: Any) -> bool:
    """Whether `conv` can compute a convolution with this window on this machine."""
    ones = (1, 1)
    plain = len(window.size) == 2 and window.strides == window.holes == ones and window.groups == 1
    return plain and dtype == jnp.float32 and jax.default_backend() == "cpu" and _handlers_are_registered()


def conv(
    x: Float[Array, "n h w c"], kernel: Float[Array, "kh kw c o"], mask: Bool[Array, "kh kw c o"], window: Window
) -> Float[Array, "n _ _ o"]:
    """The convolution with the kernel's surviving weights, without padding."""
    return conv_p.bind(x, kernel, mask, window=window)


@cache
def _handlers_are_registered() -> bool:
    """Compiles and registers the handlers; False where that is impossible."""
    file = Path(__file__).with_suffix(".cc")
    try:
        flags = (*FLAGS, f"-I{jax.ffi.include_dir()}")
        library = ctypes.CDLL(str(shared_library(file.stem, {file.name: file.read_text()}, flags, language="C++")))
    except (ExportError, OSError):
        return False
    for name in _HANDLERS:
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), platform="cpu")
    return True


def _conv(x: Array, kernel: Array, mask: Array, *, window: Window) -> Array:
    """Images [n, *space, c], kernel and mask [*size, c, o] -> [n, *out, o]."""
    y = jax.ShapeDtypeStruct((len(x), *window.out, kernel.shape[3]), x.dtype)
    return jax.ffi.ffi_call(_HANDLERS[0], y)(x, kernel, mask, flipped=False)


def _conv_to_images(g: Array, kernel: Array, mask: Array, *, window: Window) -> Array:
    """The transpose with respect to the images: g [n, *out, o], kernel and mask -> [n, *space, c]."""
    x = jax.ShapeDtypeStruct((len(g), *window.space, kernel.shape[2]), g.dtype)
    return jax.ffi.ffi_call(_HANDLERS[0], x)(g, kernel, mask, flipped=True)


def _conv_to_kernel(x: Array, g: Array, mask: Array, *, window: Window) -> Array:
    """The transpose with respect to the kernel: x [n, *space, c], g [n, *out, o], mask -> [*size, c, o]."""
    del window
    return jax.ffi.ffi_call(_HANDLERS[1], jax.ShapeDtypeStruct(mask.shape, x.dtype))(x, g, mask)


conv_p = primitive_of("nttzoo_sparse_conv", _conv)
conv_to_images_p = primitive_of("nttzoo_sparse_conv_to_images", _conv_to_images)
conv_to_kernel_p = primitive_of("nttzoo_sparse_conv_to_kernel", _conv_to_kernel)


def _define_bilinear(primitive: Primitive, to_one: Any, to_two: Any) -> None:
    """Derivatives of a primitive that is linear in both of its arrays and is also given the mask."""

    def transpose(ct: Any, one: Any, two: Any, mask: Array, *, window: Window) -> list[Any]:
        if type(ct) is ad.Zero:
            return [None, None, None]
        if ad.is_undefined_primal(one):
            return [to_one(ct, two, mask, window=window), None, None]
        return [None, to_two(one, ct, mask, window=window), None]

    def of_one(tangent: Array, one: Array, two: Array, mask: Array, **window: Any) -> Array:
        return primitive.bind(tangent, two, mask, **window)

    def of_two(tangent: Array, one: Array, two: Array, mask: Array, **window: Any) -> Array:
        return primitive.bind(one, tangent, mask, **window)

    ad.defjvp(primitive, of_one, of_two, None)
    ad.primitive_transposes[primitive] = transpose


def _swapped(primitive: Primitive) -> Any:
    return lambda one, two, mask, **window: primitive.bind(two, one, mask, **window)


_define_bilinear(conv_p, conv_to_images_p.bind, conv_to_kernel_p.bind)
_define_bilinear(conv_to_images_p, conv_p.bind, _swapped(conv_to_kernel_p))
_define_bilinear(conv_to_kernel_p, _swapped(conv_to_images_p), conv_p.bind)


def _batch_over_images(primitive: Primitive, args: Any, dims: Any, *, window: Window) -> tuple[Array, int]:
    """vmap of images with one kernel: the new axis joins the images. Any other vmap: one after the other."""
    (images, kernel, mask), (axis, *others) = args, dims
    if any(other is not None for other in others):
        return batch_by_loop(primitive, args, dims, window=window)
    images = jnp.moveaxis(images, axis, 0)
    y = primitive.bind(images.reshape(-1, *images.shape[2:]), kernel, mask, window=window)
    return y.reshape(*images.shape[:2], *y.shape[1:]), 0


batching.primitive_batchers[conv_p] = partial(_batch_over_images, conv_p)
batching.primitive_batchers[conv_to_images_p] = partial(_batch_over_images, conv_to_images_p)
batching.primitive_batchers[conv_to_kernel_p] = partial(batch_by_loop, conv_to_kernel_p)
