"""Elementwise functions and arithmetic; softmax."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.functions import Function
from nttzoo.codegen.ir import Softmax
from nttzoo.codegen.reader import READERS, Read, Reader, called
from nttzoo.errors import ExportError

LIMITS = (-3.4028234e38, 3.4028234e38)  # of float32


def _function(name: str, *parameters: tuple[str, float]) -> Read:
    """A reader of a function whose parameters are attributes, with defaults."""

    def read(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
        reader.shape(node)
        values = [float(given.get(key, default)) for key, default in parameters]
        reader.map(node, [node.input[0]], node.output[0], after=((name, *values),))

    return read


for _onnx_name, _read in {
    "Relu": _function("relu"),
    "Sigmoid": _function("sigmoid"),
    "Tanh": _function("tanh"),
    "LeakyRelu": _function("leaky_relu", ("alpha", 0.01)),
    "Elu": _function("elu", ("alpha", 1.0)),
    "HardSwish": _function("hard_swish"),
}.items():
    READERS.register(_onnx_name)(_read)


@READERS.register("Gelu")
def _gelu(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    kind = given.get("approximate", b"none").decode()
    if kind not in ("none", "tanh"):
        raise ExportError(f"{called(node)}: the approximation {kind!r} is not supported.")
    _function("gelu" if kind == "none" else "gelu_tanh")(reader, node, given)


@READERS.register("Function")  # made by `patterns`
def _recognized(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    function: Function = (given["function"].decode(), *given.get("parameters", ()))
    reader.shape(node)
    reader.map(node, [node.input[0]], node.output[0], after=(function,))


@READERS.register("Clip")
def _clip(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    bounds = []
    for index, key, default in ((1, "min", LIMITS[0]), (2, "max", LIMITS[1])):
        value = reader.constant(node, index)
        bounds.append(float(np.clip(given.get(key, default) if value is None else value.item(), *LIMITS)))
    reader.shape(node)
    # The upper bound wins.
    reader.map(node, [node.input[0]], node.output[0], after=(("clip", min(bounds), bounds[1]),))


def _bounded(largest: bool, reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    """The larger or the smaller of a value and a constant."""
    values, constants = _split(reader, node)
    if len(values) != 1 or len(constants) != 1 or constants[0].size != 1:
        raise ExportError(f"{called(node)}: one value and one single number are supported.")
    bound = float(np.clip(constants[0].item(), *LIMITS))
    bounds = (bound, LIMITS[1]) if largest else (LIMITS[0], bound)
    reader.map(node, values, node.output[0], after=(("clip", *bounds),))


READERS.register("Max")(partial(_bounded, True))
READERS.register("Min")(partial(_bounded, False))


@READERS.register("Softmax")
def _softmax(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    shape = reader.shape(node)
    axis = reader.axis(node, given.get("axis", -1 if reader.opset >= 13 else 1), len(shape))
    if reader.opset < 13 and len(shape) > 1:
        raise ExportError(f"{called(node)}: softmax over several axes is not supported.")
    reader.add(Softmax(node.name, [node.input[0]], node.output[0], axis), shape)


def _split(reader: Reader, node: onnx.NodeProto) -> tuple[list[str], list[np.ndarray]]:
    """(inputs that depend on the network's, constants)."""
    values = [name for name in node.input if name not in reader.constants]
    if not values:
        raise ExportError(f"{called(node)}: none of its inputs depends on the network's.")
    return values, [reader.constants[name] for name in node.input if name in reader.constants]


def _without_batch(reader: Reader, node: onnx.NodeProto, value: np.ndarray, rank: int) -> np.ndarray:
    """A constant for a value of `rank` axes: a batch axis of its own goes."""
    return value.reshape(value.shape[1:]) if value.ndim > rank and len(value) == 1 else value


@READERS.register("Add")
def _add(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    values, constants = _split(reader, node)
    shapes = [reader.shapes[name] for name in values]
    if len(values) == 2:
        if shapes[0] != shapes[1]:
            raise ExportError(f"{called(node)}: values of shapes {shapes[0]} and {shapes[1]} cannot be added here.")
        reader.map(node, values, node.output[0])
        return
    reader.map(node, values, node.output[0], shift=_without_batch(reader, node, constants[0], len(shapes[0])))


def _affine(kind: str, reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    """A value minus, times or divided by a constant, or a constant minus a value."""
    values, constants = _split(reader, node)
    if len(values) != 1:
        raise ExportError(f"{called(node)}: one of its inputs must be a constant.")
    constant = _without_batch(reader, node, constants[0], len(reader.shapes[values[0]]))
    if kind == "Mul":
        reader.map(node, values, node.output[0], scale=constant)
    elif kind == "Sub" and values[0] == node.input[0]:
        reader.map(node, values, node.output[0], shift=-constant)
    elif kind == "Sub":
        reader.map(node, values, node.output[0], scale=-1.0, shift=constant)
    elif values[0] == node.input[0] and constant.all():
        reader.map(node, values, node.output[0], scale=1 / constant)
    else:
        raise ExportError(f"{called(node)}: it must divide by a constant without zeros.")


for _kind in ("Sub", "Mul", "Div"):
    READERS.register(_kind)(partial(_affine, _kind))
