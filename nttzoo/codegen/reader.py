"""The state of reading an ONNX graph: constants, shapes, batch axes, and the operations found so far.

Operations act on one example. An ONNX value has a batch axis, usually the first; `Batch` records which. It is merged if
it also enumerates rows of each example, as in [batch * rows, columns].

If the batch size is dynamic, constants computed from it are evaluated for two sizes: those that agree do not depend on
it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from nttzoo.codegen.functions import Function
from nttzoo.codegen.ir import Map, Op, Shape, View
from nttzoo.errors import ExportError
from nttzoo.export import graph
from nttzoo.registry import Registry

# (reader, node, its attributes): adds operations to the reader
Read = Callable[["Reader", onnx.NodeProto, dict[str, Any]], None]
READERS: Registry[Read] = Registry("ONNX operator")  # filled by `operators`
SIZES = (5, 7)  # two sizes of a dynamic batch
CHANCE = ("Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike")
# Operators that ONNX's reference implements only as they are since some opset.
_MEANT_OTHERWISE = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13, "AveragePool": 7}
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)


def called(node: onnx.NodeProto) -> str:
    """A node's name in error messages."""
    return f"node {node.name or next(iter(node.output), '')!r} ({node.op_type})"


@dataclass(frozen=True)
class Batch:
    """Which axis of an ONNX value is the batch, and whether it also enumerates rows of each example.

    Rows are usually inside the examples; `outer` of them are outside, as in [outer * batch * rows].
    """

    axis: int = 0
    merged: bool = False
    outer: int = 1

    def at(self, axis: int) -> Batch:
        """The batch at another axis."""
        return replace(self, axis=axis)


class Reader:
    """Constants, shapes and operations known so far."""

    def __init__(self, constants: dict[str, np.ndarray], opset: int, batch: int, training: bool):
        self.constants = constants
        self.others: dict[str, np.ndarray] = {}  # constants that depend on the batch's size, for the second of SIZES
        self.opset = opset
        self.sizes = (batch, batch) if batch else SIZES
        self.training = training
        self.shapes: dict[str, Shape] = {}  # of one example
        self.batches: dict[str, Batch] = {}
        self.ops: list[Op] = []

    # Constants.

    def constant(self, node: onnx.NodeProto, index: int) -> np.ndarray | None:
        """The node's input number `index`, a constant, or None if it is not given."""
        if index >= len(node.input) or not node.input[index]:
            return None
        name = node.input[index]
        if name not in self.constants:
            raise ExportError(f"{called(node)}: input {index} must be a constant.")
        if name in self.others:
            raise ExportError(f"{called(node)}: input {index} depends on the size of the batch.")
        return self.constants[name]

    def needed(self, node: onnx.NodeProto, index: int) -> np.ndarray:
        """The node's input number `index`, which must be a constant."""
        value = self.constant(node, index)
        if value is None:
            raise ExportError(f"{called(node)}: input {index} is missing.")
        return value

    def both(self, node: onnx.NodeProto, index: int) -> tuple[np.ndarray, np.ndarray]:
        """A constant input for both sizes of the batch."""
        name = node.input[index] if index < len(node.input) else ""
        if name not in self.constants:
            raise ExportError(f"{called(node)}: input {index} must be a constant.")
        return self.constants[name], self.others.get(name, self.constants[name])

    def fold(self, node: onnx.NodeProto) -> None:
        """Evaluates a node all of whose inputs are constants."""
        if node.op_type in _MEANT_OTHERWISE and self.opset < _MEANT_OTHERWISE[node.op_type]:
            raise ExportError(f"{called(node)} of a constant is not supported in opset {self.opset}.")
        if node.op_type in CHANCE:
            raise ExportError(f"{called(node)} draws random numbers, which an inference graph must not do.")
        if any(attribute.type in _GRAPHS for attribute in node.attribute):  # a loop may never end
            raise ExportError(f"{called(node)}: branches and loops are not supported.")
        names = [name for name in node.input if name]
        outputs = [name for name in node.output if name]
        values = evaluate(node, {name: self.constants[name] for name in names}, self.opset)
        self.constants.update(zip(outputs, values, strict=True))
        if any(name in self.others for name in names):
            known = {name: self.others.get(name, self.constants[name]) for name in names}
            for name, value in zip(outputs, evaluate(node, known, self.opset), strict=True):
                self.set_pair(name, self.constants[name], value)

    def set_pair(self, name: str, first: np.ndarray, second: np.ndarray) -> None:
        """A constant for both sizes of the batch."""
        self.constants[name] = first
        if not np.array_equal(first, second):
            self.others[name] = second

    # Values.

    def shape(self, node: onnx.NodeProto, index: int = 0, rank: int | None = None) -> Shape:
        """The shape, without the batch, of the node's input number `index`; its first axis must be the batch."""
        name = self.value(node, index)
        if self.batches[name] != Batch():
            raise ExportError(f"{called(node)}: the first axis of input {index} must be the batch.")
        shape = self.shapes[name]
        if rank is not None and len(shape) != rank:
            raise ExportError(
                f"{called(node)}: a value of {rank + 1} axes is needed, batch included, not {len(shape) + 1}."
            )
        return shape

    def value(self, node: onnx.NodeProto, index: int = 0) -> str:
        """The name of the node's input number `index`, which must depend on the network's input."""
        if index >= len(node.input) or node.input[index] not in self.shapes:
            raise ExportError(f"{called(node)}: input {index} must depend on the network's input.")
        return node.input[index]

    def full(self, name: str) -> list[int]:
        """A value's shape for one example as ONNX has it: with the batch, of size 1."""
        shape, batch = list(self.shapes[name]), self.batches[name]
        return shape if batch.merged else [*shape[: batch.axis], 1, *shape[batch.axis :]]

    def rank(self, name: str) -> int:
        """How many axes a value has in ONNX."""
        return len(self.full(name))

    def axis(self, node: onnx.NodeProto, axis: int, name: str | None = None) -> int:
        """An axis as the node gives it -> that axis of one example; it must not be the batch."""
        name = name or self.value(node)
        rank, batch = self.rank(name), self.batches[name]
        if not -rank <= axis < rank:
            raise ExportError(f"{called(node)}: there is no axis {axis}.")
        axis %= rank
        if axis == batch.axis:
            raise ExportError(f"{called(node)}: axis {axis} is the batch: examples would be mixed.")
        return axis - (axis > batch.axis and not batch.merged)

    # Operations.

    def add(self, op: Op, shape: Shape, batch: Batch | None = None) -> str:
        """Adds an operation whose result has this shape; returns the result's name."""
        self.ops.append(op)
        self.shapes[op.output] = tuple(int(size) for size in shape)
        self.batches[op.output] = batch or Batch()
        return op.output

    def new(self, node: onnx.NodeProto, what: str) -> str:
        """A name for an intermediate value of a node."""
        return f"{node.output[0]}.{what}{len(self.ops)}"

    def view(
        self,
        node: onnx.NodeProto,
        source: str,
        move: Callable[[np.ndarray], np.ndarray],
        target: str | None = None,
        batch: Batch | None = None,
    ) -> str:
        """Adds an operation that only moves elements."""
        target = target or self.new(node, "view")
        return self.add(View(node.name, [source], target, move), move(np.empty(self.shapes[source])).shape, batch)

    def full_view(
        self,
        node: onnx.NodeProto,
        source: str,
        move: Callable[[np.ndarray], np.ndarray],
        batch: Batch,
        target: str | None = None,
    ) -> str:
        """Adds a view, defined by its effect on an array with a batch of size 1."""
        before, found = self.full(source), batch

        def moved(value: np.ndarray) -> np.ndarray:
            after = move(value.reshape(before))
            return after if found.merged else after.squeeze(found.axis)

        return self.view(node, source, moved, target, batch)

    def map(
        self,
        node: onnx.NodeProto,
        inputs: list[str],
        target: str | None = None,
        scale: Any = 1.0,
        shift: Any = 0.0,
        after: tuple[Function, ...] = (),
    ) -> str:
        """Adds an elementwise operation on values of one shape."""
        shape = self.shapes[inputs[0]]
        try:
            scale, shift = (np.broadcast_to(np.asarray(value, np.float32), shape) for value in (scale, shift))
        except ValueError as error:
            raise ExportError(f"{called(node)}: its constants do not fit a value of shape {shape}: {error}") from error
        op = Map(node.name, inputs, target or self.new(node, "map"), scale, shift, after=list(after))
        return self.add(op, shape, self.batches[inputs[0]])


def evaluate(node: onnx.NodeProto, given: dict[str, np.ndarray], opset: int) -> list[np.ndarray]:
    """Evaluates a node on constants with ONNX's reference implementation."""
    types = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    ]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
    used = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "fold", types, outputs), opset_imports=used)
    known = onnx.ModelProto()
    known.CopyFrom(model)
    known.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in given.items())
    graph.check_shapes(known, strict=False)
    try:
        with np.errstate(all="ignore"):
            return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, given)]
    except Exception as error:  # each operator of the reference raises its own
        raise ExportError(f"{called(node)}: it cannot be evaluated in advance:  {error}") from error
