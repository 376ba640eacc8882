"""The intermediate representation: operations on the values of one example, without the batch axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from nttzoo.codegen.functions import Function

Shape = tuple[int, ...]
Pair = tuple[int, int]


@dataclass
class Op:
    """One operation: `name` is the ONNX node's, `output` the value computed from `inputs`."""

    name: str
    inputs: list[str]
    output: str
    after: list[Function] = field(default_factory=list, kw_only=True)  # applied to the result


@dataclass
class Conv(Op):
    """[c, h, w] -> [o, h', w']; weight [o, c / groups, kh, kw], bias [o]; pads (top, left, bottom, right)."""

    weight: np.ndarray
    bias: np.ndarray
    strides: Pair
    pads: tuple[int, int, int, int]
    dilations: Pair
    groups: int
    pool: Pool | None = None  # applied to each plane as soon as it is computed, before `after`


@dataclass
class Linear(Op):
    """[k] -> [m]; weight [k, m], bias [m]."""

    weight: np.ndarray
    bias: np.ndarray


@dataclass
class Pool(Op):
    """[c, h, w] -> [c, h', w'], "max" or "average"; `count_pads`: the average divides by the whole window."""

    kind: str
    window: Pair
    strides: Pair
    pads: tuple[int, int, int, int]
    count_pads: bool = False


@dataclass
class Map(Op):
    """The sum of its one or two inputs, times `scale`, plus `shift` (broadcast to the value's shape)."""

    scale: np.ndarray
    shift: np.ndarray


@dataclass
class Binary(Op):
    """Two inputs of one shape, element by element: "sub", "mul", "div", "max", "min" or "pow"."""

    kind: str


@dataclass
class Product(Op):
    """Matrix products [b, m, k] @ [b, k, n] -> [b, m, n] of two values."""


@dataclass
class Join(Op):
    """An array of constants, `fill`, with its inputs written over it: input i at the flat indices `places[i]`."""

    places: list[np.ndarray]
    fill: np.ndarray


@dataclass
class GroupNorm(Op):
    """Groups of neighboring channels with mean 0 and variance 1, then per channel times `scale`, plus `bias`.

    The value, whatever its shape, is in C order [channels, ...], with as many channels as scale and bias.
    """

    groups: int
    epsilon: float
    scale: np.ndarray
    bias: np.ndarray


@dataclass
class Softmax(Op):
    """exp(x) / sum(exp(x)) over one axis, or the logarithm of that."""

    axis: int
    log: bool = False


@dataclass
class Dropout(Op):
    """Zeros a fraction `rate` of the elements and scales the others by 1 / (1 - rate); only in training."""

    rate: float


@dataclass
class View(Op):
    """Elements in another order or shape: `move` is the operation as a function of a NumPy array.

    Elements may be left out or used several times.
    """

    move: Callable[[np.ndarray], np.ndarray]


@dataclass
class Program:
    """Operations in the order of execution, from `source` to `target`; the shapes of all values."""

    ops: list[Op]
    source: str
    target: str
    shapes: dict[str, Shape]

    def users(self, value: str) -> list[Op]:
        """The operations that read a value."""
        return [op for op in self.ops if value in op.inputs]

    def maker(self, value: str) -> Op | None:
        """The operation that computes a value; None for the source."""
        return next((op for op in self.ops if op.output == value), None)


def conv_planes(op: Conv, shape: Shape) -> Pair:
    """The height and width of a convolution's planes, before any pooling."""
    return sliding(shape[1:], op.weight.shape[2:], op.strides, op.pads, op.dilations)


def sliding(size: Shape, window: Shape, strides: Pair, pads: tuple[int, int, int, int], dilations: Pair) -> Pair:
    """The number of window positions along height and width."""
    places = [
        (size[axis] + pads[axis] + pads[axis + 2] - dilations[axis] * (window[axis] - 1) - 1) // strides[axis] + 1
        for axis in range(2)
    ]
    return places[0], places[1]
