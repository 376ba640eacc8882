"""Products of activations and weights in a traced program, in one common form.

Any `dot_general` or convolution is a sum over inputs k for every position p, group g and output unit c: out[p, g, c] =
sum over k of inputs[p, g, k] * weights[g, k, c]. The functions here bring arrays into that form. Leading axes
(examples, outputs of the network, steps of a loop) stay in front.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from nttzoo.ops import convolution, patches
from nttzoo.ops.patches import Ints, Window


@runtime_checkable
class Product(Protocol):
    """A product of activations and weights."""

    @property
    def layout(self) -> Any:
        """Equal for two products that arrange their weights in the same way."""

    def weights(self, array: Shaped[Array, "..."]) -> Shaped[Array, "g k c"]:
        """An array of the weights' shape as [g, k, c]."""

    def inputs(self, array: Shaped[Array, "*lead ..."], lead: int) -> Shaped[Array, "*lead p g k"]:
        """An array of the activations' shape after `lead` axes as [..., p, g, k]."""

    def outputs(self, array: Shaped[Array, "*lead ..."], lead: int) -> Shaped[Array, "*lead p g c"]:
        """An array of the results' shape after `lead` axes as [..., p, g, c]."""


@dataclass(frozen=True)
class Dot:
    """A `dot_general`. Axes of the weights and of the activations: (batch, contracted, free)."""

    of_weights: tuple[Ints, Ints, Ints]
    of_inputs: tuple[Ints, Ints, Ints]
    weights_first: bool

    @property
    def layout(self) -> Any:
        return self.of_weights

    def weights(self, array: Array) -> Array:
        batch, contracted, free = self.of_weights
        return _grouped(array, 0, batch, contracted, free)

    def inputs(self, array: Array, lead: int) -> Array:
        batch, contracted, free = self.of_inputs
        return _grouped(array, lead, free, batch, contracted)

    def outputs(self, array: Array, lead: int) -> Array:
        groups, positions, units = (len(axes) for axes in (self.of_weights[0], self.of_inputs[2], self.of_weights[2]))
        batch = range(groups)
        if self.weights_first:
            free, inner = range(groups, groups + units), range(groups + units, groups + units + positions)
        else:
            inner, free = range(groups, groups + positions), range(groups + positions, groups + positions + units)
        return _grouped(array, lead, inner, batch, free)


def _grouped(array: Any, lead: int, *axes: Any) -> Any:
    """Merges each group of axes into one axis, after `lead` axes that stay."""
    order = [axis + lead for group in axes for axis in group]
    sizes = [math.prod(array.shape[axis + lead] for axis in group) for group in axes]
    return array.transpose(*range(lead), *order).reshape(*array.shape[:lead], *sizes)


@dataclass(frozen=True)
class Convolution:
    """A convolution. Specs list the axes (batch or output unit, channel, *space), as lax has them."""

    images: Ints
    kernel: Ints
    results: Ints
    size: Ints
    strides: Ints
    padding: tuple[tuple[int, int], ...]
    inner: Ints
    holes: Ints
    groups: int

    @property
    def layout(self) -> Any:
        return self.kernel, self.size, self.groups

    def weights(self, array: Array) -> Array:
        units, channels, *space = self.kernel
        array = _ordered(array, 0, [*space, channels, units])
        outputs = array.shape[-1]
        return array.reshape(-1, self.groups, outputs // self.groups).swapaxes(0, 1)

    def inputs(self, array: Array, lead: int) -> Array:
        array = _channels_last(array, lead, self.images)
        images = array.reshape(-1, *array.shape[lead + 1 :])
        padded = patches.pad(images, self.size, self.strides, self.padding, self.inner, self.holes)
        window = Window(self.size, self.strides, self.holes, padded.shape[1:-1])
        unfolded = patches.unfold(padded, window)
        taps, channels = unfolded.shape[-2:]
        positions = array.shape[lead] * math.prod(window.out)
        unfolded = unfolded.reshape(-1, positions, taps, channels)
        if self.groups > 1:
            unfolded = unfolded.reshape(-1, positions, taps, self.groups, channels // self.groups).swapaxes(2, 3)
        return unfolded.reshape(*array.shape[:lead], positions, self.groups, taps * channels // self.groups)

    def outputs(self, array: Array, lead: int) -> Array:
        array = _channels_last(array, lead, self.results)
        return array.reshape(*array.shape[:lead], -1, self.groups, array.shape[-1] // self.groups)


def _channels_last(array: Any, lead: int, spec: Ints) -> Any:
    batch, channels, *space = spec
    return _ordered(array, lead, [batch, *space, channels])


def _ordered(array: Any, lead: int, axes: list[int]) -> Any:
    order = [*range(lead), *(axis + lead for axis in axes)]
    return array if order == list(range(array.ndim)) else array.transpose(order)


def product_of(equation: Any, weights: int) -> Product | None:
    """The product that an equation computes, if it is one and its operand number `weights` can be its weights."""
    name, params = equation.primitive.name, equation.params
    shapes = [var.aval.shape for var in equation.invars]
    if not all(jnp.issubdtype(var.aval.dtype, jnp.floating) for var in (*equation.invars, *equation.outvars)):
        return None
    if name == "dot_general":
        contracted, batch = params["dimension_numbers"]
        mine, other = (_axes(shapes[i], batch[i], contracted[i]) for i in (weights, 1 - weights))
        return Dot(mine, other, weights == 0)
    if weights != 1:
        return None
    if name == convolution.conv_p.name:
        window: Window = params["window"]
        space = len(window.size)
        last = (0, space + 1, *range(1, space + 1))
        none = ((0, 0),) * space
        kernel = (space + 1, space, *range(space))
        ones = (1,) * space
        return Convolution(last, kernel, last, window.size, window.strides, none, ones, window.holes, window.groups)
    if name == "conv_general_dilated" and params["batch_group_count"] == 1:
        numbers = params["dimension_numbers"]
        return Convolution(
            images=tuple(numbers.lhs_spec),
            kernel=tuple(numbers.rhs_spec),
            results=tuple(numbers.out_spec),
            size=tuple(shapes[1][axis] for axis in numbers.rhs_spec[2:]),
            strides=tuple(params["window_strides"]),
            padding=tuple((int(low), int(high)) for low, high in params["padding"]),
            inner=tuple(params["lhs_dilation"]),
            holes=tuple(params["rhs_dilation"]),
            groups=params["feature_group_count"],
        )
    return None


def _axes(shape: Ints, batch: Any, contracted: Any) -> tuple[Ints, Ints, Ints]:
    batch, contracted = tuple(map(int, batch)), tuple(map(int, contracted))
    return batch, contracted, tuple(axis for axis in range(len(shape)) if axis not in (*batch, *contracted))
