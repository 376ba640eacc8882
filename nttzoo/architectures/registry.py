"""Architectures by name, and what all of them share."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from nttzoo._util.checks import check_seed
from nttzoo.data import InputSpec
from nttzoo.errors import ModelError, ShapeError
from nttzoo.registry import Registry

ARCHITECTURES: Registry[Callable[..., Network]] = Registry("architecture")

Shape = tuple[int, ...]


class Network(nnx.Module):
    """A classifier that knows the shape of its images (without the batch axis) and its number of classes."""

    default_input_shape: Shape
    input_spec: InputSpec  # if it came from a file

    def __init__(self, *, num_classes: int, input_shape: Shape):
        self.num_classes = num_classes
        self.input_shape = input_shape

    def logits(self, images: Float[Array, "n h w c"], rngs: nnx.Rngs | None) -> Float[Array, "n classes"]:
        """Standardized images -> logits."""
        raise NotImplementedError

    def __call__(self, images: Float[Array, "n h w c"], *, rngs: nnx.Rngs | None = None) -> Float[Array, "n classes"]:
        check_images(images, self.input_shape, type(self).__name__)
        return self.logits(images, rngs)


def check_images(images: Array, input_shape: Shape, who: str) -> None:
    """Raises unless `images` is a batch of floating-point images of the expected shape."""
    if images.shape[1:] != tuple(input_shape):
        expected = ", ".join(map(str, input_shape))
        raise ShapeError(f"{who} takes images of shape [n, {expected}], got {list(images.shape)}.")
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise ShapeError(
            f"{who} takes standardized floating-point images, got {images.dtype}. "
            "nttzoo.data.standardize(images, mean, std) turns raw uint8 images into them."
        )


def create(name: str, *, num_classes: int = 10, input_shape: Shape | None = None, rngs: nnx.Rngs | int) -> Network:
    """Creates a freshly initialized network with full masks, in training mode.

    Args:
      name: a registered architecture: "lenet300", "lenet5", "conv4" ...
      num_classes: number of outputs.
      input_shape: of one image, (height, width, channels) (default: that of the architecture's data set in the paper).
      rngs: seeds weights and dropout: an `nnx.Rngs`, or a number.

    Returns:
      The network.

    Raises:
      UnknownName: if there is no such architecture.
      ShapeError: if the architecture cannot take images of this shape.

    Example:
      >>> model = nttzoo.create("lenet5", num_classes=10, input_shape=(28, 28, 1), rngs=0)
    """
    make: Any = ARCHITECTURES[name]
    if not _is_size(num_classes):
        raise ModelError(f"num_classes is {num_classes!r}; it must be a whole number, 1 or more.")
    shape = make.default_input_shape if input_shape is None else input_shape
    if shape is None:
        raise ShapeError(f"{name} has no default input shape: pass input_shape=(h, w, c), or --data.")
    if not isinstance(shape, list | tuple) or not shape or not all(_is_size(size) for size in shape):
        raise ShapeError(f"input_shape is that of one image, usually (height, width, channels); got {shape!r}.")
    usual = make.default_input_shape
    if usual is not None and len(shape) != len(usual):
        raise ShapeError(
            f"{name} takes images of shape (height, width, channels), such as {usual}; got {tuple(shape)}."
        )
    streams = rngs if isinstance(rngs, nnx.Rngs) else nnx.Rngs(check_seed(rngs, "rngs"))
    return make(num_classes=num_classes, input_shape=tuple(shape), rngs=streams)


def _is_size(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and 1 <= int(value) < 2**31


def blank(name: str, spec: InputSpec, *, seed: int) -> Network:
    """A network as `create` gives, but with zeros for weights: at once, for weights that come from a file.

    It carries what its inputs need in `input_spec`.
    """
    shapes: Any = {"num_classes": len(spec.classes), "input_shape": spec.shape}
    network = nnx.eval_shape(lambda: create(name, rngs=seed, **shapes))
    leaves, tree = jax.tree.flatten(nnx.state(network))

    def value(index: int, leaf: jax.ShapeDtypeStruct) -> Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.fold_in(jax.random.key(seed), index)  # a stream of its own for each dropout
        return jnp.full(leaf.shape, leaf.dtype == bool, leaf.dtype)  # masks are full

    nnx.update(network, jax.tree.unflatten(tree, [value(i, leaf) for i, leaf in enumerate(leaves)]))
    network.input_spec = spec
    return network
