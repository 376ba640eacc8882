"""The graph of a training step: nodes that read and write values.

A value is a stack of planes [c, h, w] with the examples of a block innermost. Views are free: an operation after a view
reads the same value in another order. Borders of zeros around activations (for convolutions that pad) and around
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
    """Planes [c, h, w]; `pads` and `gradient_pads`: zeros around each plane, as its readers need."""

    name: str
    planes: Planes
    pads: Pads = NO_PADS
    gradient_pads: Pads = NO_PADS
    has_gradient: bool = True
    gate: float | None = None  # negative slope of the rectifier fused into its node
    readers: list[Node] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return int(np.prod(self.planes))

    def rows(self, *, gradient: bool = False) -> Pair:
        """(rows of a plane, elements of a row) in memory."""
        top, left, bottom, right = self.gradient_pads if gradient else self.pads
        return self.planes[1] + top + bottom, self.planes[2] + left + right

    def addresses(self, *, gradient: bool = False) -> np.ndarray:
        """The address of each element in the value's memory: [c, h, w]."""
        top, left, _, _ = self.gradient_pads if gradient else self.pads
        height, width = self.rows(gradient=gradient)
        c, y, x = np.ix_(*map(np.arange, self.planes))
        return (c * height + y + top) * width + x + left

    def memory(self, *, gradient: bool = False) -> int:
        """The number of elements of its memory."""
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
    `order`: the index into the source of each input of a linear layer.
    """

    parameters: np.ndarray
    bias: np.ndarray
    strides: Pair = (1, 1)
    pads: Pads = NO_PADS
    dilations: Pair = (1, 1)
    groups: int = 1
    order: np.ndarray | None = None
    inner: Value | None = None  # with pooling: the planes before it, of which only gradients are stored

    @property
    def planes(self) -> Value:
        """The layer's output before any pooling."""
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
    """The elements `order` of the source."""

    order: np.ndarray


@dataclass(eq=False)
class Concatenation(Node):
    """Constants `fill` [size], partly overwritten by elements of the sources.

    `parts`: for each source (elements of the target, elements of the source).
    """

    parts: list[tuple[np.ndarray, np.ndarray]]
    fill: np.ndarray


@dataclass
class Graph:
    """Nodes in the order of execution; `input_order`, `output_order`: the element of each input or logit."""

    nodes: list[Node]
    values: list[Value]
    source: Value
    target: Value
    input_order: np.ndarray
    output_order: np.ndarray
