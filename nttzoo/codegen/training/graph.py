"""What a training step computes: nodes that read and write values.

A value is a stack of planes [c, h, w] with the examples of a block innermost. Views cost nothing: an operation behind a
view sees the same value in another order. Borders of zeros around activations (for convolutions that pad) and around
gradients (for transposed convolutions) belong to the value's layout, so that no operation copies.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nttzoo.codegen.ir import Function, Pair

Planes = tuple[int, int, int]
Pads = tuple[int, int, int, int]  # top, left, bottom, right
NO_PADS: Pads = (0, 0, 0, 0)


@dataclass(eq=False)
class Value:
    """Planes [c, h, w]; `pads` and `gradient_pads`: zeros around each plane, as those who read them need."""

    name: str
    planes: Planes
    pads: Pads = NO_PADS
    gradient_pads: Pads = NO_PADS
    has_gradient: bool = True
    gate: float | None = None  # the slope below zero of the rectifier that its maker applies
    readers: list[Node] = field(default_factory=list)

    @property
    def size(self) -> int:
        """How many elements it has."""
        return int(np.prod(self.planes))

    def rows(self, *, gradient: bool = False) -> Pair:
        """(rows of a plane, elements of a row) in memory."""
        top, left, bottom, right = self.gradient_pads if gradient else self.pads
        return self.planes[1] + top + bottom, self.planes[2] + left + right

    def addresses(self, *, gradient: bool = False) -> np.ndarray:
        """Where each element lies in the value's memory: [c, h, w]."""
        top, left, _, _ = self.gradient_pads if gradient else self.pads
        height, width = self.rows(gradient=gradient)
        c, y, x = np.ix_(*map(np.arange, self.planes))
        return (c * height + y + top) * width + x + left

    def memory(self, *, gradient: bool = False) -> int:
        """How many elements its memory has."""
        height, width = self.rows(gradient=gradient)
        return self.planes[0] * height * width


@dataclass(eq=False)
class Node:
    """One operation: reads values, writes one."""

    name: str
    sources: list[Value]
    target: Value


@dataclass(eq=False)
class Affine(Node):
    """A convolution or linear layer, with its rectifier, and with 2x2 max pooling if it has one.

    `parameters`: flat index of each weight [o, i / groups, kh, kw] (a linear layer's inputs are i); `bias`: [o], or -1.
    `order`: the source's element that each input of a linear layer is.
    """

    parameters: np.ndarray
    bias: np.ndarray
    strides: Pair = (1, 1)
    pads: Pads = NO_PADS
    dilations: Pair = (1, 1)
    groups: int = 1
    order: np.ndarray | None = None
    inner: Value | None = None  # with pooling: the planes before it, of which only gradients are kept

    @property
    def planes(self) -> Value:
        """What the weights make, before any pooling."""
        return self.inner or self.target


@dataclass(eq=False)
class Pooling(Node):
    """Maximum or average over windows."""

    kind: str
    window: Pair
    strides: Pair
    pads: Pads
    count_pads: bool


@dataclass(eq=False)
class Activation(Node):
    """An elementwise function."""

    function: Function


@dataclass(eq=False)
class Drop(Node):
    """Dropout, in place."""

    rate: float
    stream: int


@dataclass(eq=False)
class Sum(Node):
    """(The sum of its sources) * scale + shift: constants, one or [size] each."""

    scale: np.ndarray
    shift: np.ndarray


@dataclass(eq=False)
class Normalization(Node):
    """Group normalization; `scale` and `bias`: flat indices of parameters [c], if it has them."""

    groups: int
    epsilon: float
    scale: np.ndarray | None = None
    bias: np.ndarray | None = None


@dataclass(eq=False)
class Copy(Node):
    """The elements `order` of the source, one after the other."""

    order: np.ndarray


@dataclass(eq=False)
class Concatenation(Node):
    """Constants `fill` [size], with elements of the sources written over them.

    `parts`: for each source (elements of the target, elements of the source).
    """

    parts: list[tuple[np.ndarray, np.ndarray]]
    fill: np.ndarray


@dataclass
class Graph:
    """Nodes in the order of execution; `input_order`, `output_order`: which element each input or logit is."""

    nodes: list[Node]
    values: list[Value]
    source: Value
    target: Value
    input_order: np.ndarray
    output_order: np.ndarray
