"""What is known while an ONNX graph is read: constants, shapes, the operations so far."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.functions import Function
from nttzoo.codegen.ir import Map, Op, Shape, View
from nttzoo.errors import ExportError
from nttzoo.registry import Registry

# (reader, node, its attributes): adds operations to the reader
Read = Callable[["Reader", onnx.NodeProto, dict[str, Any]], None]
READERS: Registry[Read] = Registry("ONNX operator")  # filled by `operators`


def called(node: onnx.NodeProto) -> str:
    """How errors speak of a node."""
    return f"node {node.name or node.output[0]!r} ({node.op_type})"


class Reader:
    """Constants, shapes and operations known so far."""

    def __init__(self, constants: dict[str, np.ndarray], opset: int, batch: int, training: bool):
        self.constants = constants
        self.opset = opset
        self.batch = batch  # 0: any
        self.training = training
        self.shapes: dict[str, Shape] = {}
        self.ops: list[Op] = []

    def constant(self, node: onnx.NodeProto, index: int) -> np.ndarray | None:
        """The node's input number `index`, if it is given; it must be a constant then."""
        if index >= len(node.input) or not node.input[index]:
            return None
        if node.input[index] not in self.constants:
            raise ExportError(f"{called(node)}: input {index} must be a constant.")
        return self.constants[node.input[index]]

    def needed(self, node: onnx.NodeProto, index: int) -> np.ndarray:
        """The node's input number `index`, which must be a constant."""
        value = self.constant(node, index)
        if value is None:
            raise ExportError(f"{called(node)}: input {index} is missing.")
        return value

    def shape(self, node: onnx.NodeProto, index: int = 0, rank: int | None = None) -> Shape:
        """The shape, without the batch, of the node's input number `index`."""
        if node.input[index] not in self.shapes:
            raise ExportError(f"{called(node)}: input {index} must depend on the network's input.")
        shape = self.shapes[node.input[index]]
        if rank is not None and len(shape) != rank:
            raise ExportError(
                f"{called(node)}: a value of {rank + 1} axes is needed, batch included, not {len(shape) + 1}."
            )
        return shape

    def axis(self, node: onnx.NodeProto, axis: int, rank: int) -> int:
        """An axis as the node gives it, for a value of `rank` axes without the batch -> the axis without the batch."""
        if not -rank - 1 <= axis <= rank:
            raise ExportError(f"{called(node)}: there is no axis {axis}.")
        if axis % (rank + 1) == 0:
            raise ExportError(f"{called(node)}: axis {axis} is the batch, whose examples would be mixed.")
        return axis % (rank + 1) - 1

    def add(self, op: Op, shape: Shape) -> str:
        """Takes an operation, whose result has a shape, and returns the result's name."""
        self.ops.append(op)
        self.shapes[op.output] = shape
        return op.output

    def new(self, node: onnx.NodeProto, what: str) -> str:
        """A name for a value between two operations of one node."""
        return f"{node.output[0]}.{what}{len(self.ops)}"

    def view(self, node: onnx.NodeProto, source: str, move: Callable[[np.ndarray], np.ndarray], target: str) -> str:
        """An operation that only moves elements."""
        return self.add(View(node.name, [source], target, move), move(np.empty(self.shapes[source])).shape)

    def map(
        self,
        node: onnx.NodeProto,
        inputs: list[str],
        target: str,
        scale: Any = 1.0,
        shift: Any = 0.0,
        after: tuple[Function, ...] = (),
    ) -> str:
        """An elementwise operation on values of one shape."""
        shape = self.shapes[inputs[0]]
        try:
            scale, shift = (np.broadcast_to(np.asarray(value, np.float32), shape) for value in (scale, shift))
        except ValueError as error:
            raise ExportError(f"{called(node)}: its constants do not fit a value of shape {shape}: {error}") from error
        return self.add(Map(node.name, inputs, target, scale, shift, after=list(after)), shape)
