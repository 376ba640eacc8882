"""An execution plan: buffers in one arena, and steps that each read some of them and write one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from nttzoo.codegen.functions import Function
from nttzoo.codegen.ir import Pair

SLACK = 16  # floats after each buffer that vector loads and stores may touch
INPUT, OUTPUT = "input", "output"


@dataclass
class Buffer:
    """Floats of the arena, live from the first step that writes them to the last that reads them."""

    size: int
    first: int = 10**9
    last: int = -1
    offset: int = -1


@dataclass
class Tensor:
    """A value in memory: a buffer, and each element's address in it; -1 for elements that are not stored."""

    buffer: str
    address: np.ndarray


@dataclass
class Step:
    """One C function: it reads buffers, writes one, and applies functions to the result."""

    name: str
    reads: list[str]
    writes: str
    after: list[Function]
    scratch: str | None = field(default=None, kw_only=True)


@dataclass
class SparseConvStep(Step):
    """Each output plane is its bias plus shifted, weighted input planes.

    A plane is `size` (height, width) in rows of `row` floats; `tile` rows of all planes are computed at a time.
    """

    planes: list[tuple[float, np.ndarray, np.ndarray]]  # bias, offsets, weights
    size: Pair
    row: int
    tile: int
    stride: int  # floats from one output plane to the next
    pooling: Pooling | None


@dataclass
class SparseLinearStep(Step):
    """Each output is its bias plus weighted inputs."""

    units: list[tuple[float, np.ndarray, np.ndarray]]  # bias, addresses, weights


@dataclass
class DenseLinearStep(Step):
    """A dense matrix: weight [k, m], bias [m]."""

    addresses: np.ndarray
    weight: np.ndarray
    bias: np.ndarray


@dataclass
class Pooling:
    """Pooling of one plane with rows of `row` floats; the pooled plane is contiguous."""

    kind: str
    size: Pair
    row: int
    out: Pair
    window: Pair
    strides: Pair
    pads: Pair
    count_pads: bool

    @property
    def is_2x2(self) -> bool:
        """Whether it is the most common kind: non-overlapping 2x2 max pooling."""
        return self.kind == "max" and (*self.window, *self.strides, *self.pads) == (2, 2, 2, 2, 0, 0)


@dataclass
class PoolStep(Step):
    """Pools the planes that start at `starts`."""

    starts: np.ndarray
    pooling: Pooling


@dataclass
class ElementwiseStep(Step):
    """One input or two combined, element by element, in runs of constant steps (see `addresses.find_runs`)."""

    runs: np.ndarray
    zeroed: bool  # the buffer starts as zeros
    scale: np.ndarray | None = None  # in the order of the elements
    shift: np.ndarray | None = None
    kind: str = "add"  # how two inputs are combined


@dataclass
class FillStep(Step):
    """Writes constants to addresses."""

    places: np.ndarray
    values: np.ndarray


@dataclass
class MatmulStep(Step):
    """Matrix products [count, m, k] @ [count, k, n] of contiguous arrays."""

    count: int
    m: int
    k: int
    n: int


@dataclass
class SoftmaxStep(Step):
    """Softmax over each run, or its logarithm."""

    runs: np.ndarray
    log: bool = False


@dataclass
class GroupNormStep(Step):
    """Normalizes groups of channels of `size` floats each, all contiguous."""

    groups: int
    epsilon: float
    scale: np.ndarray
    bias: np.ndarray
    size: int


@dataclass
class Plan:
    """Steps in order, and their buffers, placed in an arena of `arena` floats."""

    steps: list[Step]
    buffers: dict[str, Buffer]
    arena: int


def place(buffers: list[Buffer]) -> int:
    """Gives each buffer an offset so that no two live ones overlap; returns the arena's size."""
    placed: list[Buffer] = []
    for buffer in sorted(buffers, key=lambda b: -b.size):
        busy = sorted(
            (other.offset, other.offset + other.size)
            for other in placed
            if other.first <= buffer.last and buffer.first <= other.last
        )
        offset = 0
        for begin, end in busy:
            if offset + buffer.size <= begin:
                break
            offset = max(offset, -(-end // SLACK) * SLACK)  # vectors are faster at aligned addresses
        buffer.offset = offset
        placed.append(buffer)
    return max((buffer.offset + buffer.size for buffer in placed), default=0)
