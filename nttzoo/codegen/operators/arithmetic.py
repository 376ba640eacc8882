"""Sums, products and the like of values and constants, with ONNX's rules of broadcasting."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.functions import Function
from nttzoo.codegen.ir import Binary
from nttzoo.codegen.operators.elementwise import LIMITS
from nttzoo.codegen.operators.joining import join, without_batch
from nttzoo.codegen.reader import READERS, Batch, Reader, called
from nttzoo.errors import ExportError


def broadcast(reader: Reader, node: onnx.NodeProto, name: str, shape: tuple[int, ...], batch: Batch) -> str:
    """A value in the shape, for one example, that broadcasting gives it."""
    if reader.shapes[name] == shape and reader.batches[name] == batch:
        return name
    return reader.view(node, name, lambda value: np.broadcast_to(value, shape), batch=batch)


def _common_batch(reader: Reader, node: onnx.NodeProto, values: list[str]) -> tuple[Batch, int]:
    """(where the batch is in the result, the result's rank); the batch must be the same axis of all values."""
    rank = max(reader.rank(name) for name in values)
    batches = {reader.batches[name].at(reader.batches[name].axis + rank - reader.rank(name)) for name in values}
    if len(batches) > 1:
        raise ExportError(f"{called(node)}: the batch is not the same axis in all inputs.")
    return batches.pop(), rank


def _legacy(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    """Before opset 7, `axis` aligned the second input: adds the axes that broadcasting needs since then."""
    if reader.opset >= 7 or not node.input or len(node.input) != 2:
        return
    name = node.input[1]
    if not given.get("broadcast"):
        shapes = [
            reader.full(value)[1:] if value in reader.shapes else list(reader.constants[value].shape)[1:]
            for value in node.input
        ]
        if shapes[0] != shapes[1]:
            raise ExportError(f"{called(node)}: before opset 7, shapes must be equal unless broadcast is set.")
        return
    if "axis" not in given:
        return
    if name in reader.shapes or node.input[0] not in reader.shapes:
        raise ExportError(f"{called(node)}: axis {given['axis']} is supported for a second input that is a constant.")
    value, rank = reader.constants[name], reader.rank(node.input[0])
    behind = rank - given["axis"] % rank - value.ndim
    if behind < 0:
        raise ExportError(f"{called(node)}: a constant of shape {value.shape} does not fit at axis {given['axis']}.")
    placed = f"{name}.placed{len(reader.constants)}"
    reader.constants[placed] = value.reshape(*value.shape, *[1] * behind)
    node.input[1] = placed


def _fitting(shapes: list[tuple[int, ...]], node: onnx.NodeProto) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError as error:
        raise ExportError(f"{called(node)}: shapes {shapes} (of one example) do not fit: {error}.") from error


def _operands(reader: Reader, node: onnx.NodeProto) -> tuple[list[str | np.ndarray], tuple[int, ...], Batch]:
    """(names of values, constants; the shape that all have together, for one example; where the batch is)."""
    values = [name for name in node.input if name in reader.shapes]
    batch, rank = _common_batch(reader, node, values)
    found: list[str | np.ndarray] = []
    shapes = []
    for index, name in enumerate(node.input):
        if name in reader.shapes:
            missing = rank - reader.rank(name)
            shapes.append((1,) * missing + reader.shapes[name])
            found.append(name)
        else:
            constant = without_batch(reader, node, index, batch, rank)
            if constant.dtype.kind != "f" and node.op_type != "Pow":
                raise ExportError(f"{called(node)}: input {index} is not a floating-point number.")
            shapes.append(constant.shape)
            found.append(constant)
    shape = _fitting(shapes, node)
    return [broadcast(reader, node, x, shape, batch) if isinstance(x, str) else x for x in found], shape, batch


def _as_value(
    reader: Reader, node: onnx.NodeProto, operand: str | np.ndarray, shape: tuple[int, ...], batch: Batch
) -> str:
    """An operand as a value: constants become one."""
    if isinstance(operand, str):
        return operand
    return join(reader, node, [], np.broadcast_to(operand, shape), batch)


def _combine(
    reader: Reader,
    node: onnx.NodeProto,
    kind: str,
    a: str | np.ndarray,
    b: str | np.ndarray,
    shape: tuple[int, ...],
    batch: Batch,
    target: str | None,
) -> str:
    """One operation on two operands, at least one of them a value."""
    if isinstance(a, str) and isinstance(b, str):
        if kind == "add":
            return reader.map(node, [a, b], target)
        if kind == "mul" and a == b:
            return reader.map(node, [a], target, after=(("square",),))
    elif (made := _with_constant(reader, node, kind, a, b, target)) is not None:
        return made
    inputs = [_as_value(reader, node, operand, shape, batch) for operand in (a, b)]
    return reader.add(Binary(node.name, inputs, target or reader.new(node, kind), kind), shape, batch)


def _with_constant(
    reader: Reader, node: onnx.NodeProto, kind: str, a: str | np.ndarray, b: str | np.ndarray, target: str | None
) -> str | None:
    """A value and a constant as a scale, a shift or a function of the value; None if it is none of these."""
    if isinstance(a, np.ndarray):
        assert isinstance(b, str)
        if kind in ("add", "mul", "max", "min"):
            return _with_constant(reader, node, kind, b, a, target)
        if kind == "sub":
            return reader.map(node, [b], target, -1.0, a)
        if kind == "div":
            inverse = reader.map(node, [b], after=(("reciprocal",),))
            return reader.map(node, [inverse], target, a)
        return None
    assert isinstance(b, np.ndarray)
    if kind == "add":
        return reader.map(node, [a], target, shift=b)
    if kind == "sub":
        return reader.map(node, [a], target, shift=-b)
    if kind == "mul":
        return reader.map(node, [a], target, b)
    if kind == "div":
        if not b.all():
            raise ExportError(f"{called(node)}: it divides by a constant with zeros.")
        return reader.map(node, [a], target, 1 / b.astype(float))
    if not b.size or (b != b.ravel()[0]).any():
        return None
    number = float(np.clip(b.ravel()[0], *LIMITS))
    function: Function
    if kind == "pow":
        function = {2.0: ("square",), 0.5: ("sqrt",), -1.0: ("reciprocal",)}.get(number, ("power", number))
    else:
        function = ("clip", number, LIMITS[1]) if kind == "max" else ("clip", LIMITS[0], number)
    return reader.map(node, [a], target, after=(function,))


def _binary(kind: str, reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    _legacy(reader, node, given)
    (a, b), shape, batch = _operands(reader, node)
    _combine(reader, node, kind, a, b, shape, batch, node.output[0])


def _many(kind: str, reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    """The sum, mean, maximum or minimum of any number of inputs."""
    operands, shape, batch = _operands(reader, node)
    operands.sort(key=lambda operand: isinstance(operand, np.ndarray))  # values first
    result = operands[0]
    for operand in operands[1:]:
        result = _combine(reader, node, "add" if kind == "mean" else kind, result, operand, shape, batch, None)
    assert isinstance(result, str)
    reader.map(node, [result], node.output[0], 1 / len(operands) if kind == "mean" else 1.0)


for _kind in ("Add", "Sub", "Mul", "Div", "Pow"):
    READERS.register(_kind)(partial(_binary, _kind.lower()))
for _onnx_name, _kind in {"Sum": "add", "Mean": "mean", "Max": "max", "Min": "min"}.items():
    READERS.register(_onnx_name)(partial(_many, _kind))


@READERS.register("PRelu")
def _prelu(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    """max(x, 0) + slope * min(x, 0)."""
    name, slope = reader.value(node), reader.needed(node, 1)
    if reader.opset < 7 and slope.size > 1:
        slope = slope.reshape(-1, *[1] * (reader.rank(name) - 2))
        node.input[1] = f"{node.input[1]}.placed"
        reader.constants[node.input[1]] = slope
    slope = without_batch(reader, node, 1, reader.batches[name], reader.rank(name))
    if _fitting([reader.shapes[name], slope.shape], node) != reader.shapes[name]:
        raise ExportError(f"{called(node)}: a slope of shape {slope.shape} does not fit {reader.shapes[name]}.")
    above = reader.map(node, [name], after=(("relu",),))
    below = reader.map(node, [name], after=(("clip", LIMITS[0], 0.0),))
    scaled = reader.map(node, [below], scale=slope)
    reader.map(node, [above, scaled], node.output[0])
