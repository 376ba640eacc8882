"""Operators of the domain ai.onnx.ml, in which scikit-learn's models are exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.functions import Function
from nttzoo.codegen.ir import Binary, Softmax
from nttzoo.codegen.operators.arithmetic import broadcast
from nttzoo.codegen.operators.layers import linear
from nttzoo.codegen.operators.pooling import reduce
from nttzoo.codegen.reader import READERS, Reader, called
from nttzoo.errors import ExportError


@READERS.register("Scaler")
def _scaler(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    offset, scale = (np.array(given.get(key, [default])) for key, default in (("offset", 0.0), ("scale", 1.0)))
    reader.map(node, [reader.value(node)], node.output[0], scale, -offset * scale)


def _scores(reader: Reader, node: onnx.NodeProto, given: dict[str, Any], target: str) -> None:
    """Linear functions of the input, with coefficients as one flat list."""
    (inputs,) = reader.shape(node, rank=1)
    weight = np.array(given["coefficients"], np.float32).reshape(-1, inputs).T
    linear(reader, node, reader.value(node), weight, np.array(given.get("intercepts", [0.0])), target)


@READERS.register("LinearRegressor")
def _regressor(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    if given.get("post_transform", b"NONE") != b"NONE":
        raise ExportError(f"{called(node)}: post_transform is not supported.")
    _scores(reader, node, given, node.output[0])


@READERS.register("LinearClassifier")
def _classifier(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    """The scores, its second output; the label is the class with the largest."""
    kind = given.get("post_transform", b"NONE").decode()
    functions: dict[str, tuple[Function, ...]] = {"NONE": (), "LOGISTIC": (("sigmoid",),), "SOFTMAX": ()}
    classes = max(len(given.get("classlabels_ints", [])), len(given.get("classlabels_strings", [])))
    scores = reader.new(node, "scores")
    _scores(reader, node, given, scores)
    if kind not in functions or classes != reader.shapes[scores][0]:
        raise ExportError(f"{called(node)}: {kind} of {reader.shapes[scores][0]} scores is not supported.")
    if kind == "SOFTMAX":
        reader.add(Softmax(node.name, [scores], node.output[1], 0), (classes,))
    else:
        reader.map(node, [scores], node.output[1], after=functions[kind])


@READERS.register("Normalizer")
def _normalizer(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name, kind = reader.value(node), given.get("norm", b"MAX").decode()
    shape = reader.shape(node, rank=1)
    before: dict[str, tuple[Function, ...]] = {"L1": (("abs",),), "L2": (("square",),)}
    if kind not in before:
        raise ExportError(f"{called(node)}: the norm {kind} is not supported.")
    sizes = reader.map(node, [name], after=before[kind])
    mean = reduce(reader, node, "average", [1], True, reader.new(node, "mean"), sizes)
    after: tuple[Function, ...] = (("sqrt",),) if kind == "L2" else ()
    total = reader.map(node, [mean], scale=float(shape[0]), after=after)
    norm = broadcast(reader, node, total, shape, reader.batches[name])
    reader.add(Binary(node.name, [name, norm], node.output[0], "div"), shape)
