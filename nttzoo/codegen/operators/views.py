"""Operators that move elements, and constants."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.ir import Dropout
from nttzoo.codegen.reader import READERS, Reader, called
from nttzoo.errors import ExportError


@READERS.register("Flatten")
def _flatten(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    if given.get("axis", 1) != 1:
        raise ExportError(f"{called(node)}: only axis 1, which keeps the batch, is supported.")
    reader.shape(node)
    reader.view(node, node.input[0], np.ravel, node.output[0])


@READERS.register("Reshape")
def _reshape(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    target = reader.needed(node, 1)
    shape = reader.shape(node)
    sizes = [int(size) for size in target]
    try:
        rest = [shape[i] if size == 0 and not given.get("allowzero") else size for i, size in enumerate(sizes[1:])]
        if sizes[0] not in (0, -1, reader.batch or -1):
            raise ValueError("the first axis is not the batch")
        reader.view(node, node.input[0], lambda value: value.reshape(rest), node.output[0])
    except (ValueError, IndexError) as error:
        raise ExportError(f"{called(node)}: shape {sizes} would mix the examples of a batch.") from error


@READERS.register("Transpose")
def _transpose(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    order = given.get("perm", list(range(len(reader.shape(node)), -1, -1)))
    if order[0] != 0:
        raise ExportError(f"{called(node)}: perm {order} moves the batch axis.")
    axes = [axis - 1 for axis in order[1:]]
    reader.view(node, node.input[0], lambda value: value.transpose(axes), node.output[0])


@READERS.register("Dropout")
def _dropout(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    ratio, mode = reader.constant(node, 1), reader.constant(node, 2)
    rate = given.get("ratio", 0.5) if ratio is None else ratio.item()
    if not reader.training and ((mode is not None and mode.item()) or (reader.opset < 7 and not given.get("is_test"))):
        raise ExportError(f"{called(node)} is in training mode: its answers are random. Export it for inference.")
    if any(node.output[1:]):
        raise ExportError(f"{called(node)}: the mask, its second output, is not supported.")
    if not reader.training or rate == 0:
        _identity(reader, node, given)
    else:
        shape = reader.shape(node)
        reader.add(Dropout(node.name, [node.input[0]], node.output[0], float(rate)), shape)


@READERS.register("Identity")
def _identity(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    reader.shape(node)
    reader.view(node, node.input[0], lambda value: value, node.output[0])


@READERS.register("Constant")
def _constant(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    kind, value = next(iter(given.items()))
    types = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
    if kind == "value":
        reader.constants[node.output[0]] = onnx.numpy_helper.to_array(value)
    elif kind in types:
        reader.constants[node.output[0]] = np.array(value, types[kind])
    else:
        raise ExportError(f"{called(node)}: constants given as {kind} are not supported.")
