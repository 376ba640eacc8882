"""Elementwise functions of one value, and softmax."""

from __future__ import annotations

import math
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
        values = [float(given.get(key, default)) for key, default in parameters]
        reader.map(node, [reader.value(node)], node.output[0], after=((name, *values),))

    return read


for _onnx_name, _read in {
    "Relu": _function("relu"),
    "Sigmoid": _function("sigmoid"),
    "Tanh": _function("tanh"),
    "LeakyRelu": _function("leaky_relu", ("alpha", 0.01)),
    "Elu": _function("elu", ("alpha", 1.0)),
    "Selu": _function("selu", ("alpha", 1.6732631921768188), ("gamma", 1.0507010221481323)),
    "HardSigmoid": _function("hard_sigmoid", ("alpha", 0.2), ("beta", 0.5)),
    "ThresholdedRelu": _function("thresholded_relu", ("alpha", 1.0)),
    "HardSwish": _function("hard_swish"),
    "Softplus": _function("softplus"),
    "Softsign": _function("softsign"),
    "Mish": _function("mish"),
    **{
        name: _function(name.lower())
        for name in ("Exp", "Log", "Sqrt", "Abs", "Sign", "Reciprocal", "Floor", "Ceil", "Round", "Erf")
    },
    **{name: _function(name.lower()) for name in ("Sin", "Cos", "Tan", "Asin", "Acos", "Atan")},
    **{name: _function(name.lower()) for name in ("Sinh", "Cosh", "Asinh", "Acosh", "Atanh")},
}.items():
    READERS.register(_onnx_name)(_read)


@READERS.register("Celu")
def _celu(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    alpha = float(given.get("alpha", 1.0))
    if alpha == 0:
        raise ExportError(f"{called(node)}: alpha must not be 0.")
    reader.map(node, [reader.value(node)], node.output[0], after=(("celu", alpha),))


@READERS.register("Neg")
def _neg(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    reader.map(node, [reader.value(node)], node.output[0], scale=-1.0)


@READERS.register("Gelu")
def _gelu(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    kind = given.get("approximate", b"none").decode()
    if kind not in ("none", "tanh"):
        raise ExportError(f"{called(node)}: the approximation {kind!r} is not supported.")
    _function("gelu" if kind == "none" else "gelu_tanh")(reader, node, given)


@READERS.register("Swish")
def _swish(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    alpha = float(given.get("alpha", 1.0))
    if alpha == 0:
        raise ExportError(f"{called(node)}: alpha must not be 0.")
    scaled = reader.map(node, [reader.value(node)], scale=alpha, after=(("silu",),))
    reader.map(node, [scaled], node.output[0], scale=1 / alpha)


@READERS.register("Function")  # made by `patterns`
def _recognized(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    function: Function = (given["function"].decode(), *given.get("parameters", ()))
    reader.map(node, [reader.value(node)], node.output[0], after=(function,))


@READERS.register("Clip")
def _clip(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    bounds = []
    for index, key, default in ((1, "min", LIMITS[0]), (2, "max", LIMITS[1])):
        value = reader.constant(node, index)
        bound = float(given.get(key, default) if value is None else value.item())
        if math.isnan(bound):
            raise ExportError(f"{called(node)}: a bound is NaN.")
        bounds.append(float(np.clip(bound, *LIMITS)))
    # The upper bound wins.
    reader.map(node, [reader.value(node)], node.output[0], after=(("clip", min(bounds), bounds[1]),))


def _softmax(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name, log = reader.value(node), node.op_type == "LogSoftmax"
    axis = given.get("axis", -1 if reader.opset >= 13 else 1)
    shape, batch = reader.shapes[name], reader.batches[name]
    own = reader.axis(node, axis)
    if reader.opset >= 13 or own == len(shape) - 1:
        reader.add(Softmax(node.name, [name], node.output[0], own, log), shape, batch)
        return
    # Before opset 13, all axes from this one on are one.
    if batch.axis > axis % reader.rank(name):
        raise ExportError(f"{called(node)}: examples would be mixed.")
    flat = reader.view(node, name, lambda value: value.reshape(*shape[:own], -1), batch=batch)
    middle = reader.new(node, "softmax")
    reader.add(Softmax(node.name, [flat], middle, own, log), reader.shapes[flat], batch)
    reader.view(node, middle, lambda value: value.reshape(shape), node.output[0], batch)


READERS.register("Softmax")(_softmax)
READERS.register("LogSoftmax")(_softmax)
