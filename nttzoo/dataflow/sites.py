"""Abstract values for the analysis of a program, and the sites at which parameters act as weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Integer

from nttzoo.dataflow.products import Product
from nttzoo.nn.layers import mask_p
from nttzoo.ops.patches import Ints

# The position of an equation: the numbers of the loops and calls around it, then its own.
Position = tuple[int, ...]
Loops = tuple[tuple[Position, int], ...]  # their positions and numbers of steps


@dataclass(frozen=True, eq=False)
class Fixed:
    """Depends on no parameter and on no example. Equal only to itself.

    In a loop it is the same in every step, except in those `loops` whose steps each get a slice of it.
    """

    loops: frozenset[Position] = frozenset()


class Active:
    """May depend on anything, but on parameters only through products, unless they are loose."""


@dataclass(frozen=True)
class Step:
    """An operation that only reorders, casts or masks the entries of an array."""

    name: str
    options: str = ""
    fixed: tuple[Fixed, ...] = ()
    equation: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Weights:
    """The entries of one parameter after some steps; with `spread`, some occur more than once."""

    parameter: int
    shape: Ints  # the parameter's own
    steps: tuple[Step, ...] = ()
    spread: bool = False
    loops: frozenset[Position] = frozenset()  # whose steps each get a slice of it


Value = Fixed | Active | Weights


@dataclass(frozen=True)
class Site:
    """A product whose weights are a parameter, and whose bias may be another one.

    `loops` enclose it; in those that are `sliced`, each step uses its own slice of the parameter.
    """

    parameter: int
    shape: Ints  # the parameter's own
    steps: tuple[Step, ...]
    product: Product
    results: Ints  # the shape of its results
    dtype: Any
    loops: Loops
    sliced: tuple[bool, ...]
    bias: int | None = None

    @property
    def lengths(self) -> Ints:
        """The numbers of steps of the loops around it."""
        return tuple(length for _, length in self.loops)

    def is_sliced_by(self, loop: Position) -> bool:
        """Whether each step of that loop has weights of its own."""
        return any(at == loop and sliced for (at, _), sliced in zip(self.loops, self.sliced, strict=True))

    @property
    def layout(self) -> Any:
        """Equal for two sites whose Jacobians with respect to the parameter add up entry by entry."""
        return self.steps, type(self.product), self.product.layout, self.bias

    def inputs(self, array: Array, lead: int) -> Array:
        """The product's inputs, [*lead, *lengths, ...] -> [*lead, p, g, k]: steps are positions; sliced ones groups."""
        return self._joined(self.product.inputs(array, lead + len(self.loops)), lead)

    def outputs(self, array: Array, lead: int) -> Array:
        """An array of its results, [*lead, *lengths, ...] -> [*lead, p, g, c]."""
        return self._joined(self.product.outputs(array, lead + len(self.loops)), lead)

    def weights(self, array: Array) -> Array:
        """An array of its weights, [*slices, ...] -> [g, k, c]."""
        if not any(self.sliced):
            return self.product.weights(array)
        slices = array.reshape(-1, *array.shape[sum(self.sliced) :])
        return jnp.concatenate([self.product.weights(each) for each in slices])

    def _joined(self, array: Array, lead: int) -> Array:
        if not self.loops:
            return array
        positions = [lead + i for i, sliced in enumerate(self.sliced) if not sliced]
        groups = [lead + i for i, sliced in enumerate(self.sliced) if sliced]
        last = array.ndim - 1
        array = array.transpose(*range(lead), *positions, last - 2, *groups, last - 1, last)
        middle = lead + len(positions) + 1
        sizes = math.prod(array.shape[lead:middle]), math.prod(array.shape[middle:last])
        return array.reshape(*array.shape[:lead], *sizes, array.shape[-1])

    def places(self) -> Integer[np.ndarray, "g k c"]:
        """The index into the parameter of each weight of the product; slices number groups."""
        entries = numbered(self.shape, self.steps)
        if entries is None:
            raise ValueError(f"the steps {[step.name for step in self.steps]} cannot be retraced")
        slices = entries.reshape(-1, *entries.shape[sum(self.sliced) :])
        return np.concatenate([self.product.weights(each) for each in slices])


def site_of(weights: Weights, product: Product, result: Any, around: Loops) -> Site:
    """The site of a product with these weights and a result of this shape and type."""
    sliced = tuple(loop in weights.loops for loop, _ in around)
    return Site(weights.parameter, weights.shape, weights.steps, product, result.shape, result.dtype, around, sliced)


def numbered(shape: Ints, steps: tuple[Step, ...]) -> Integer[np.ndarray, "..."] | None:
    """The indices of a parameter's entries after some steps; None if they cannot be retraced."""
    return _retraced(np.arange(math.prod(shape)).reshape(shape), steps)


def _retraced(entries: np.ndarray, steps: tuple[Step, ...]) -> np.ndarray | None:
    for i, step in enumerate(steps):
        params = getattr(step.equation, "params", {})
        match step.name:
            case "slice":
                slices = [_retraced(each, steps[i + 1 :]) for each in entries]
                return None if any(each is None for each in slices) else np.stack(slices)  # type: ignore[arg-type]
            case "reshape":
                entries = entries.reshape(params["new_sizes"])
            case "squeeze":
                entries = entries.squeeze(params["dimensions"])
            case "transpose":
                entries = entries.transpose(params["permutation"])
            case "rev":
                entries = np.flip(entries, params["dimensions"])
            case "broadcast_in_dim":
                sizes = [1] * len(params["shape"])
                for axis, size in zip(params["broadcast_dimensions"], entries.shape, strict=True):
                    sizes[axis] = size
                entries = np.broadcast_to(entries.reshape(sizes), params["shape"])
            case "copy" | "copy_p" | "convert_element_type" | "select_n" | "pvary" | "pcast" | mask_p.name:
                pass
            case _:
                return None
    return entries
