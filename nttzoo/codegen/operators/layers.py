"""Convolutions and linear layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.ir import Conv, Linear
from nttzoo.codegen.operators import windows
from nttzoo.codegen.reader import READERS, Reader, called
from nttzoo.errors import ExportError


@READERS.register("Conv")
def _conv(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    weight = reader.needed(node, 1)
    if weight.ndim != 4:
        raise ExportError(
            f"{called(node)}: only convolutions over height and width are compiled, not {weight.ndim - 2}-D ones."
        )
    shape = reader.shape(node, rank=3)
    bias = reader.constant(node, 2)
    bias = np.zeros(len(weight), np.float32) if bias is None else bias
    strides, dilations = tuple(given.get("strides", (1, 1))), tuple(given.get("dilations", (1, 1)))
    pads = windows.pads(node, given, shape[1:], weight.shape[2:], strides, dilations)
    places = windows.places(node, shape[1:], weight.shape[2:], strides, pads, dilations)
    groups = given.get("group", 1)
    if weight.shape[1] * groups != shape[0] or len(weight) % groups:
        raise ExportError(f"{called(node)}: weights of shape {weight.shape} do not fit {shape[0]} channels.")
    op = Conv(node.name, [node.input[0]], node.output[0], weight, bias, strides, pads, dilations, groups)
    reader.add(op, (len(weight), *places))


@READERS.register("Gemm")
def _gemm(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    reader.shape(node, rank=1)
    weight, bias = reader.needed(node, 1), reader.constant(node, 2)
    if given.get("transA"):
        raise ExportError(f"{called(node)}: transA would mix the examples of a batch.")
    weight = given.get("alpha", 1.0) * (weight.T if given.get("transB") else weight)
    if bias is not None and bias.ndim == 2 and len(bias) > 1:
        raise ExportError(f"{called(node)}: a bias that differs between the examples of a batch is not supported.")
    bias = given.get("beta", 1.0) * (np.zeros(1) if bias is None else bias)
    _linear(reader, node, weight, bias)


@READERS.register("MatMul")
def _matmul(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    reader.shape(node, rank=1)
    weight = reader.needed(node, 1)
    if weight.ndim != 2:
        raise ExportError(f"{called(node)}: the constant has {weight.ndim} axes; a matrix is needed.")
    _linear(reader, node, weight, np.zeros(1))


def _linear(reader: Reader, node: onnx.NodeProto, weight: np.ndarray, bias: np.ndarray) -> None:
    inputs, outputs = weight.shape
    shape = reader.shape(node)
    if (inputs,) != shape:
        raise ExportError(f"{called(node)}: weights of shape {weight.shape} do not fit {shape} inputs.")
    bias = np.broadcast_to(bias.astype(np.float32).reshape(-1), (outputs,)).copy()
    reader.add(Linear(node.name, [node.input[0]], node.output[0], weight.astype(np.float32), bias), (outputs,))
