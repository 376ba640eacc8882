"""Operators that leave values as they are, at inference: identity, casts, dropout; and constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.ir import Dropout
from nttzoo.codegen.reader import READERS, Reader, called
from nttzoo.errors import ExportError
from nttzoo.export import graph


@READERS.register("Dropout")
def _dropout(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    ratio, mode = reader.constant(node, 1), reader.constant(node, 2)
    rate = given.get("ratio", 0.5) if ratio is None else ratio.item()
    random = (mode is not None and mode.item()) or (reader.opset < 7 and not given.get("is_test"))
    if not reader.training and random and rate:
        raise ExportError(f"{called(node)} is in training mode: its outputs are random. Export it for inference.")
    if not reader.training or not random or rate == 0:
        _identity(reader, node, given)
    else:
        shape = reader.shape(node)
        reader.add(Dropout(node.name, [node.input[0]], node.output[0], float(rate)), shape)


@READERS.register("Identity")
def _identity(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    reader.view(node, name, lambda value: value, node.output[0], reader.batches[name])


@READERS.register("Cast")
def _cast(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    if given["to"] not in (onnx.TensorProto.FLOAT, "FLOAT", b"FLOAT"):
        raise ExportError(f"{called(node)}: only float32 is compiled.")
    _identity(reader, node, given)


@READERS.register("Constant")
def _constant(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    kind, value = next(iter(given.items()))
    types = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if kind == "value":
        reader.constants[node.output[0]] = graph.array(value)
    elif kind in types:
        reader.constants[node.output[0]] = np.array(value, types[kind])
    else:
        raise ExportError(f"{called(node)}: constants given as {kind} are not supported.")
