"""The memory layout of values: planes, their order, borders and gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nttzoo.codegen.training.graph import Affine, Node, Normalization, Pads, Planes


def as_planes(shape: tuple[int, ...]) -> Planes:
    """(channels, height, width) of a value with this shape."""
    if len(shape) == 3:
        return shape[0], shape[1], shape[2]
    if len(shape) == 2:
        return shape[0], shape[1], 1
    return int(np.prod(shape)), 1, 1


def is_whole(order: np.ndarray, size: int) -> bool:
    """Whether a view has each of a value's elements exactly once."""
    return order.size == size and np.array_equal(np.sort(order.ravel()), np.arange(size))


def lay_out(nodes: Sequence[Node]) -> None:
    """Decides which values have gradients, and the borders that each needs."""
    for node in nodes:
        node.target.has_gradient = any(s.has_gradient for s in node.sources) or isinstance(node, Affine | Normalization)
        if isinstance(node, Affine):
            source = node.sources[0]
            source.pads = tuple(map(max, source.pads, node.pads))  # type: ignore[assignment]
            if source.has_gradient and node.order is None:
                node.planes.gradient_pads = _gradient_pads(node)


def _gradient_pads(node: Affine) -> Pads:
    """The border around a plane's gradient that a transposed convolution reads."""
    before, after = [], []
    for axis in range(2):
        reach = (node.parameters.shape[2 + axis] - 1) * node.dilations[axis]
        low, size, stride = node.pads[axis], node.sources[0].planes[1 + axis], node.strides[axis]
        before.append(max(0, (reach - low + stride - 1) // stride))
        after.append(max(0, (size - 1 + low) // stride - (node.planes.planes[1 + axis] - 1)))
    return before[0], before[1], after[0], after[1]
