"""From an ONNX graph to a `Program`: one small reader per operator, and an error that names what cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.ir import Conv, Dropout, Linear, Map, Op, Pair, Pool, Program, Shape, Softmax, View, sliding
from nttzoo.errors import ExportError
from nttzoo.export import graph
from nttzoo.registry import Registry

# (reader, node, its attributes) -> the operation, or None if the node gives a constant
Read = Callable[["_Reader", onnx.NodeProto, dict[str, Any]], Op | None]
READERS: Registry[Read] = Registry("ONNX operator")
LIMITS = (-3.4028234e38, 3.4028234e38)  # of float32


def read(model: onnx.ModelProto, *, training: bool = False) -> Program:
    """The program of a graph with one floating-point input and output, whose first axis is the batch.

    For training, dropout stays; else it is nothing.
    """
    _check(model)
    constants = graph.constants(model.graph)
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        raise ExportError(
            f"the graph has {len(inputs)} inputs and {len(model.graph.output)} outputs; one each is needed."
        )
    bounds = {name for node in model.graph.node if node.op_type == "Clip" for name in node.input}
    for name, value in constants.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all() and name not in bounds:
            raise ExportError(f"constant {name!r} has values that are not finite.")
    source = inputs[0]
    if source.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
        raise ExportError(f"input {source.name!r} is not float32, the only type that is compiled.")
    sizes = source.type.tensor_type.shape.dim
    for axis, size in enumerate(sizes):
        if axis and not size.dim_value:
            raise ExportError(f"axis {axis} of input {source.name!r} has no fixed size; only the batch may vary.")
    opset = next((used.version for used in model.opset_import if used.domain in ("", "ai.onnx")), 0)
    reader = _Reader(constants, opset, sizes[0].dim_value, training)
    reader.shapes[source.name] = tuple(size.dim_value for size in sizes[1:])
    ops = []
    for node in model.graph.node:
        if node.op_type not in READERS or node.domain not in ("", "ai.onnx"):
            raise ExportError(f"{_called(node)} is not supported. Supported: {', '.join(sorted(READERS))}.")
        op = READERS[node.op_type](reader, node, graph.attributes(node))
        if op is not None:
            ops.append(op)
    target = model.graph.output[0].name
    if target not in reader.shapes:
        raise ExportError(f"output {target!r} does not depend on the input.")
    return Program(ops, source.name, target, reader.shapes)


def _check(model: onnx.ModelProto) -> None:
    """Has ONNX itself look at types and shapes, which it does for dense initialisers only."""
    dense = onnx.ModelProto()
    dense.CopyFrom(model)
    graph.use_dense_initializers(dense.graph)
    try:
        onnx.shape_inference.infer_shapes(dense, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError as error:
        raise ExportError(f"the graph is not valid ONNX: {error}") from error


def _called(node: onnx.NodeProto) -> str:
    return f"node {node.name or node.output[0]!r} ({node.op_type})"


class _Reader:
    """Constants and shapes known so far."""

    def __init__(self, constants: dict[str, np.ndarray], opset: int, batch: int, training: bool):
        self.constants = constants
        self.opset = opset
        self.batch = batch  # 0: any
        self.training = training
        self.shapes: dict[str, Shape] = {}

    def constant(self, node: onnx.NodeProto, index: int) -> np.ndarray | None:
        """The node's input number `index`, if it is given; it must be a constant then."""
        if index >= len(node.input) or not node.input[index]:
            return None
        if node.input[index] not in self.constants:
            raise ExportError(f"{_called(node)}: input {index} must be a constant.")
        return self.constants[node.input[index]]

    def shape(self, node: onnx.NodeProto, index: int = 0, rank: int | None = None) -> Shape:
        """The shape, without the batch, of the node's input number `index`."""
        if node.input[index] not in self.shapes:
            raise ExportError(f"{_called(node)}: input {index} must depend on the network's input.")
        shape = self.shapes[node.input[index]]
        if rank is not None and len(shape) != rank:
            raise ExportError(
                f"{_called(node)}: a value of {rank + 1} axes is needed, batch included, not {len(shape) + 1}."
            )
        return shape

    def view(self, node: onnx.NodeProto, move: Callable[[np.ndarray], np.ndarray]) -> View:
        """An operation that only moves elements."""
        shape = self.shape(node)
        self.shapes[node.output[0]] = move(np.empty(shape)).shape
        return View(node.name, [node.input[0]], node.output[0], move)

    def map(self, node: onnx.NodeProto, inputs: list[str], scale: Any = 1.0, shift: Any = 0.0) -> Map:
        """An elementwise operation on values of one shape."""
        shape = self.shapes[inputs[0]]
        self.shapes[node.output[0]] = shape
        try:
            scale, shift = (np.broadcast_to(np.asarray(value, np.float32), shape) for value in (scale, shift))
        except ValueError as error:
            raise ExportError(f"{_called(node)}: its constants do not fit a value of shape {shape}: {error}") from error
        return Map(node.name, inputs, node.output[0], scale, shift)


def _places(node: onnx.NodeProto, *about: Any) -> Pair:
    """The height and width of what a window gives."""
    places = sliding(*about)
    if min(places) < 1:
        raise ExportError(f"{_called(node)}: the window is larger than what it looks at.")
    return places


def _pads(
    node: onnx.NodeProto, given: dict[str, Any], size: Shape, window: Pair, strides: Pair, dilations: Pair
) -> Any:
    auto = given.get("auto_pad", b"NOTSET").decode()
    if auto in ("NOTSET", "VALID"):
        pads = given.get("pads", [0, 0, 0, 0]) if auto == "NOTSET" else [0, 0, 0, 0]
        if min(pads) < 0:
            raise ExportError(f"{_called(node)}: negative pads are not supported.")
        return tuple(pads)
    lows, highs = [], []
    for axis in range(2):
        reach = dilations[axis] * (window[axis] - 1) + 1
        total = max((-(-size[axis] // strides[axis]) - 1) * strides[axis] + reach - size[axis], 0)
        low = total // 2 if auto == "SAME_UPPER" else total - total // 2
        lows.append(low)
        highs.append(total - low)
    return (*lows, *highs)


@READERS.register("Conv")
def _conv(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    weight = reader.constant(node, 1)
    assert weight is not None
    if weight.ndim != 4:
        raise ExportError(
            f"{_called(node)}: only convolutions over height and width are compiled, not {weight.ndim - 2}-D ones."
        )
    shape = reader.shape(node, rank=3)
    bias = reader.constant(node, 2)
    bias = np.zeros(len(weight), np.float32) if bias is None else bias
    strides, dilations = tuple(given.get("strides", (1, 1))), tuple(given.get("dilations", (1, 1)))
    pads = _pads(node, given, shape[1:], weight.shape[2:], strides, dilations)
    reader.shapes[node.output[0]] = (len(weight), *_places(node, shape[1:], weight.shape[2:], strides, pads, dilations))
    groups = given.get("group", 1)
    if weight.shape[1] * groups != shape[0] or len(weight) % groups:
        raise ExportError(f"{_called(node)}: weights of shape {weight.shape} do not fit {shape[0]} channels.")
    return Conv(node.name, [node.input[0]], node.output[0], weight, bias, strides, pads, dilations, groups)


@READERS.register("Gemm")
def _gemm(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    reader.shape(node, rank=1)
    weight, bias = reader.constant(node, 1), reader.constant(node, 2)
    assert weight is not None
    if given.get("transA"):
        raise ExportError(f"{_called(node)}: transA would mix the examples of a batch.")
    weight = given.get("alpha", 1.0) * (weight.T if given.get("transB") else weight)
    if bias is not None and bias.ndim == 2 and len(bias) > 1:
        raise ExportError(f"{_called(node)}: a bias that differs between the examples of a batch is not supported.")
    bias = given.get("beta", 1.0) * (np.zeros(1) if bias is None else bias)
    return _linear(reader, node, node.input[0], weight, bias)


@READERS.register("MatMul")
def _matmul(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    reader.shape(node, rank=1)
    weight = reader.constant(node, 1)
    assert weight is not None
    if weight.ndim != 2:
        raise ExportError(f"{_called(node)}: the constant has {weight.ndim} axes; a matrix is needed.")
    return _linear(reader, node, node.input[0], weight, np.zeros(1))


def _linear(reader: _Reader, node: onnx.NodeProto, source: str, weight: np.ndarray, bias: np.ndarray) -> Op:
    inputs, outputs = weight.shape
    if (inputs,) != reader.shapes[source]:
        raise ExportError(
            f"{_called(node)}: weights of shape {weight.shape} do not fit {reader.shapes[source]} inputs."
        )
    reader.shapes[node.output[0]] = (outputs,)
    bias = np.broadcast_to(bias.astype(np.float32).reshape(-1), (outputs,)).copy()
    return Linear(node.name, [source], node.output[0], weight.astype(np.float32), bias)


def _pool(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any], kind: str) -> Op:
    shape = reader.shape(node, rank=3)
    window, strides = tuple(given["kernel_shape"]), tuple(given.get("strides", (1, 1)))
    if given.get("ceil_mode") or any(d != 1 for d in given.get("dilations", (1, 1))) or len(node.output) > 1:
        raise ExportError(f"{_called(node)}: ceil_mode, dilations and indices are not supported.")
    pads = _pads(node, given, shape[1:], window, strides, (1, 1))
    reader.shapes[node.output[0]] = (shape[0], *_places(node, shape[1:], window, strides, pads, (1, 1)))
    counts = bool(given.get("count_include_pad"))
    return Pool(node.name, [node.input[0]], node.output[0], kind, window, strides, pads, counts)


@READERS.register("MaxPool")
def _max_pool(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    return _pool(reader, node, given, "max")


@READERS.register("AveragePool")
def _average_pool(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    return _pool(reader, node, given, "average")


@READERS.register("GlobalAveragePool")
def _global_pool(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    return _pool(reader, node, {"kernel_shape": reader.shape(node, rank=3)[1:]}, "average")


def _function(name: str) -> Read:
    def read_function(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
        reader.shape(node)
        op = reader.map(node, [node.input[0]])
        op.after.append((name,))
        return op

    return read_function


for _onnx_name in ("Relu", "Sigmoid", "Tanh"):
    READERS.register(_onnx_name)(_function(_onnx_name.lower()))


@READERS.register("Clip")
def _clip(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    bounds = []
    for index, key, default in ((1, "min", LIMITS[0]), (2, "max", LIMITS[1])):
        value = reader.constant(node, index)
        bounds.append(float(np.clip(given.get(key, default) if value is None else value.item(), *LIMITS)))
    reader.shape(node)
    op = reader.map(node, [node.input[0]])
    op.after.append(("clip", min(bounds), bounds[1]))  # the upper bound wins
    return op


@READERS.register("Softmax")
def _softmax(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    shape = reader.shape(node)
    axis = given.get("axis", -1 if reader.opset >= 13 else 1)
    axis = axis % (len(shape) + 1)
    if axis == 0 or (reader.opset < 13 and len(shape) > 1):
        raise ExportError(f"{_called(node)}: softmax over this axis is not supported.")
    reader.shapes[node.output[0]] = shape
    return Softmax(node.name, [node.input[0]], node.output[0], axis - 1)


@READERS.register("Add")
def _add(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    values = [name for name in node.input if name not in reader.constants]
    if not values:
        raise ExportError(f"{_called(node)}: a sum of constants; fold it first.")
    shapes = [reader.shapes[name] for name in values]
    if len(values) == 2:
        if shapes[0] != shapes[1]:
            raise ExportError(f"{_called(node)}: values of shapes {shapes[0]} and {shapes[1]} cannot be added here.")
        return reader.map(node, values)
    shift = reader.constants[next(name for name in node.input if name in reader.constants)]
    if shift.ndim > len(shapes[0]):  # with a batch axis of its own
        shift = shift.reshape(shift.shape[1:]) if len(shift) == 1 else shift
    return reader.map(node, values, shift=shift)


@READERS.register("BatchNormalization")
def _batch_norm(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    shape = reader.shape(node)
    scale, bias, mean, variance = (reader.constant(node, index) for index in range(1, 5))
    slope = scale / np.sqrt(variance + given.get("epsilon", 1e-5))
    channels = (-1,) + (1,) * (len(shape) - 1)
    return reader.map(node, [node.input[0]], slope.reshape(channels), (bias - mean * slope).reshape(channels))


@READERS.register("Flatten")
def _flatten(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    if given.get("axis", 1) != 1:
        raise ExportError(f"{_called(node)}: only axis 1, which keeps the batch, is supported.")
    return reader.view(node, np.ravel)


@READERS.register("Reshape")
def _reshape(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    target = reader.constant(node, 1)
    assert target is not None
    shape = reader.shape(node)
    sizes = [int(size) for size in target]
    try:
        rest = [shape[i] if size == 0 and not given.get("allowzero") else size for i, size in enumerate(sizes[1:])]
        if sizes[0] not in (0, -1, reader.batch or -1):
            raise ValueError("the first axis is not the batch")
        return reader.view(node, lambda value: value.reshape(rest))
    except (ValueError, IndexError) as error:
        raise ExportError(f"{_called(node)}: shape {sizes} would mix the examples of a batch.") from error


@READERS.register("Transpose")
def _transpose(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    order = given.get("perm", list(range(len(reader.shape(node)), -1, -1)))
    if order[0] != 0:
        raise ExportError(f"{_called(node)}: perm {order} moves the batch axis.")
    return reader.view(node, lambda value: value.transpose([axis - 1 for axis in order[1:]]))


@READERS.register("Dropout")
def _dropout(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    ratio = reader.constant(node, 1)
    rate = given.get("ratio", 0.5) if ratio is None else ratio.item()
    if not reader.training or rate == 0:
        return _identity(reader, node, given)
    reader.shapes[node.output[0]] = reader.shape(node)
    return Dropout(node.name, [node.input[0]], node.output[0], float(rate))


@READERS.register("Identity")
def _identity(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> Op:
    return reader.view(node, lambda value: value)


@READERS.register("Constant")
def _constant(reader: _Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    kind, value = next(iter(given.items()))
    types = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if kind == "value":
        reader.constants[node.output[0]] = onnx.numpy_helper.to_array(value)
    elif kind in types:
        reader.constants[node.output[0]] = np.array(value, types[kind])
    else:
        raise ExportError(f"{_called(node)}: constants given as {kind} are not supported.")
