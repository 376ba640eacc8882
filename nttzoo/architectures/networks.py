"""The paper's networks, with masks, and their registry.

Glorot-normal weights, biases normal with standard deviation 0.01, VALID padding, stride 1, 2x2 max pooling, ReLU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from nttzoo import nn
from nttzoo.data import InputSpec
from nttzoo.errors import ModelError, OptionError, ShapeError
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

    def features(self, images: Float[Array, "n h w c"], rngs: nnx.Rngs | None) -> Float[Array, "n classes"]:
        """Standardised images -> logits."""
        raise NotImplementedError

    def __call__(self, images: Float[Array, "n h w c"], *, rngs: nnx.Rngs | None = None) -> Float[Array, "n classes"]:
        check_images(images, self.input_shape, type(self).__name__)
        return self.features(images, rngs)


def check_images(images: Array, input_shape: Shape, who: str) -> None:
    """Raises unless `images` is a batch of floating-point images of the expected shape."""
    if images.shape[1:] != tuple(input_shape):
        expected = ", ".join(map(str, input_shape))
        raise ShapeError(f"{who} takes images of shape [n, {expected}], got {list(images.shape)}.")
    if not jnp.issubdtype(images.dtype, jnp.floating):
        raise ShapeError(
            f"{who} takes standardised floating-point images, got {images.dtype}. "
            "nttzoo.data.standardise(images, mean, std) turns raw uint8 images into them."
        )


def check_seed(seed: int) -> int:
    """The seed, if JAX takes it for one."""
    if not isinstance(seed, Integral) or not 0 <= seed < 2**32:
        raise OptionError(f"seed is {seed!r}; it must be a whole number from 0 to {2**32 - 1}.")
    return seed


def create(name: str, *, num_classes: int = 10, input_shape: Shape | None = None, rngs: nnx.Rngs | int) -> Network:
    """A freshly initialised network with full masks, in training mode, for images of `input_shape` (h, w, c).

    `rngs` seeds weights and dropout: an `nnx.Rngs`, or a number.
    """
    make: Any = ARCHITECTURES[name]
    if num_classes < 1:
        raise ModelError(f"num_classes is {num_classes}; a classifier needs at least one.")
    shape = tuple(input_shape or make.default_input_shape)
    if len(shape) != 3 or min(shape) < 1:
        raise ShapeError(
            f"input_shape is (height, width, channels), for example {make.default_input_shape}; got {shape}."
        )
    streams = nnx.Rngs(check_seed(rngs)) if isinstance(rngs, int) else rngs
    return make(num_classes=num_classes, input_shape=shape, rngs=streams)


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


_INIT = {"kernel_init": nnx.initializers.glorot_normal(), "bias_init": nnx.initializers.normal(0.01)}


def _linear(inputs: int, outputs: int, rngs: nnx.Rngs) -> nn.Linear:
    return nn.Linear(inputs, outputs, rngs=rngs, **_INIT)


def _conv(inputs: int, outputs: int, window: int, rngs: nnx.Rngs) -> nn.Conv:
    return nn.Conv(inputs, outputs, (window, window), padding="VALID", rngs=rngs, **_INIT)


def _flat_size(input_shape: Shape, windows: list[int | str], channels: int, who: str) -> int:
    """Size of the flattened features after convolutions of these windows and 2x2 "pool"s."""
    height, width = input_shape[:2]
    for step in windows:
        if isinstance(step, int):
            height, width = height - step + 1, width - step + 1
        else:
            height, width = height // 2, width // 2
        if min(height, width) < 1:
            raise ShapeError(f"images of shape {input_shape} are too small for {who}.")
    return height * width * channels


@jax.custom_jvp
def max_pool(x: Float[Array, "n h w c"]) -> Float[Array, "n h//2 w//2 c"]:
    """2x2 max pooling with stride 2; an odd last row or column is dropped; ties go to the first pixel in C order."""
    return nnx.max_pool(x, window_shape=(2, 2), strides=(2, 2), padding="VALID")


@max_pool.defjvp
def _max_pool_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    # XLA's own derivative scatters. The choice is piecewise constant: made once per example, on the values, it leaves a
    # mere selection: cheap to differentiate again, and shared by all outputs of a tangent kernel.
    (x,), (tangent,) = primals, tangents
    top = max_pool(x)
    values = _blocks(x)
    pixel = jnp.arange(4).reshape(1, 1, 2, 1, 2, 1)
    # NaN, which equals nothing, counts as largest: it must not vanish here.
    largest = (values == top[:, :, None, :, None]) | jnp.isnan(values)
    first = jnp.where(largest, pixel, 4).min((2, 4), keepdims=True)
    return top, jnp.where(pixel == first, _blocks(tangent), 0).sum((2, 4))


def _blocks(x: Float[Array, "n h w c"]) -> Float[Array, "n h//2 2 w//2 2 c"]:
    n, h, w, c = x.shape
    return x[:, : h // 2 * 2, : w // 2 * 2].reshape(n, h // 2, 2, w // 2, 2, c)


@ARCHITECTURES.register("lenet300")
class LeNet300(Network):
    """LeNet-300-100: a perceptron with hidden layers of 300 and 100 units."""

    default_input_shape = (28, 28, 1)

    def __init__(self, *, num_classes: int, input_shape: Shape, rngs: nnx.Rngs):
        super().__init__(num_classes=num_classes, input_shape=input_shape)
        self.linear1 = _linear(math.prod(input_shape), 300, rngs)
        self.linear2 = _linear(300, 100, rngs)
        self.linear3 = _linear(100, num_classes, rngs)

    def features(self, images: Array, rngs: nnx.Rngs | None) -> Array:
        """784 - 300 - 100 - classes."""
        x = images.reshape(images.shape[0], -1)
        x = nnx.relu(self.linear1(x))
        x = nnx.relu(self.linear2(x))
        return self.linear3(x)


@ARCHITECTURES.register("lenet5")
class LeNet5(Network):
    """LeNet-5 as Caffe has it: two 5x5 convolutions with pooling, then 500 units."""

    default_input_shape = (28, 28, 1)

    def __init__(self, *, num_classes: int, input_shape: Shape, rngs: nnx.Rngs):
        super().__init__(num_classes=num_classes, input_shape=input_shape)
        flat = _flat_size(input_shape, [5, "pool", 5, "pool"], 50, "lenet5")
        self.conv1 = _conv(input_shape[2], 20, 5, rngs)
        self.conv2 = _conv(20, 50, 5, rngs)
        self.linear1 = _linear(flat, 500, rngs)
        self.linear2 = _linear(500, num_classes, rngs)

    def features(self, images: Array, rngs: nnx.Rngs | None) -> Array:
        """Pooling before ReLU, which is the same and costs less."""
        x = nnx.relu(max_pool(self.conv1(images)))
        x = nnx.relu(max_pool(self.conv2(x)))
        x = x.reshape(x.shape[0], -1)
        x = nnx.relu(self.linear1(x))
        return self.linear2(x)


@ARCHITECTURES.register("conv4")
class Conv4(Network):
    """Conv-4: four 3x3 convolutions in two pooled pairs, then 512 units; dropout in training."""

    default_input_shape = (32, 32, 3)

    def __init__(self, *, num_classes: int, input_shape: Shape, rngs: nnx.Rngs):
        super().__init__(num_classes=num_classes, input_shape=input_shape)
        flat = _flat_size(input_shape, [3, 3, "pool", 3, 3, "pool"], 128, "conv4")
        self.conv1 = _conv(input_shape[2], 64, 3, rngs)
        self.conv2 = _conv(64, 64, 3, rngs)
        self.conv3 = _conv(64, 128, 3, rngs)
        self.conv4 = _conv(128, 128, 3, rngs)
        self.linear1 = _linear(flat, 512, rngs)
        self.linear2 = _linear(512, num_classes, rngs)
        self.dropout1 = nnx.Dropout(0.25, rngs=rngs)
        self.dropout2 = nnx.Dropout(0.25, rngs=rngs)
        self.dropout3 = nnx.Dropout(0.5, rngs=rngs)

    def features(self, images: Array, rngs: nnx.Rngs | None) -> Array:
        """Pooling before ReLU, which is the same and costs less."""
        x = nnx.relu(self.conv1(images))
        x = nnx.relu(max_pool(self.conv2(x)))
        x = self.dropout1(x, rngs=rngs)
        x = nnx.relu(self.conv3(x))
        x = nnx.relu(max_pool(self.conv4(x)))
        x = self.dropout2(x, rngs=rngs)
        x = x.reshape(x.shape[0], -1)
        x = nnx.relu(self.linear1(x))
        x = self.dropout3(x, rngs=rngs)
        return self.linear2(x)
