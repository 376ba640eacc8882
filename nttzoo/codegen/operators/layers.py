"""Convolutions and linear layers; products of matrices."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.ir import Conv, Linear, Product
from nttzoo.codegen.operators import windows
from nttzoo.codegen.operators.joining import join
from nttzoo.codegen.reader import READERS, Reader, called
from nttzoo.errors import ExportError


def _weights(reader: Reader, node: onnx.NodeProto, axes: int, outputs: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights [.., .., h, w] and a bias for each of the outputs; `outputs`: their axis."""
    weight = reader.needed(node, 1).astype(np.float32)
    if weight.ndim != axes + 2:
        raise ExportError(f"{called(node)}: weights of shape {weight.shape} do not fit {axes} axes.")
    weight = weight.reshape(*weight.shape[:2], *[1] * (2 - axes), *weight.shape[2:])
    bias = reader.constant(node, 2)
    return weight, np.zeros(weight.shape[outputs], np.float32) if bias is None else bias.astype(np.float32)


@READERS.register("Conv")
def _conv(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    source, axes = windows.planes(reader, node)
    weight, bias = _weights(reader, node, axes, 0)
    shape, groups = reader.shapes[source], given.get("group", 1)
    if weight.shape[1] * groups != shape[0] or len(weight) % groups or len(bias) != len(weight):
        raise ExportError(f"{called(node)}: weights of shape {weight.shape} do not fit {shape[0]} channels.")
    window = windows.window(node, given, shape[1:], weight.shape[4 - axes :], axes)
    target = node.output[0] if axes == 2 else reader.new(node, "planes")
    op = Conv(node.name, [source], target, weight, bias, window.strides, window.pads, window.dilations, groups)
    reader.add(op, (len(weight), *window.places(node, shape[1:])))
    if axes == 1:
        windows.back(reader, node, target, axes)


@READERS.register("ConvTranspose")
def _conv_transpose(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    """Zeros between the pixels, then a convolution with the flipped window."""
    source, axes = windows.planes(reader, node)
    weight = reader.needed(node, 1)  # [c, o / groups, ...]
    shape, groups = reader.shapes[source], given.get("group", 1)
    if weight.ndim != axes + 2 or len(weight) != shape[0] or len(weight) % groups:
        raise ExportError(f"{called(node)}: weights of shape {weight.shape} do not fit {shape[0]} channels.")
    outputs = weight.shape[1] * groups
    weight = weight.reshape(*weight.shape[:2], *[1] * (2 - axes), *weight.shape[2:]).astype(np.float32)
    bias = reader.constant(node, 2)
    bias = np.zeros(outputs, np.float32) if bias is None else bias.astype(np.float32)
    auto = given.get("auto_pad", b"NOTSET")
    plain = {key: value for key, value in given.items() if key not in ("auto_pad",)}
    window = windows.window(node, plain, shape[1:], weight.shape[4 - axes :], axes)
    more = [0] * (2 - axes) + list(given.get("output_padding", [0] * axes))
    reach = [window.dilations[axis] * (window.size[axis] - 1) for axis in range(2)]
    natural = [window.strides[axis] * (shape[1 + axis] - 1) + reach[axis] + 1 + more[axis] for axis in range(2)]
    pads = list(window.pads)
    wanted = None
    if "output_shape" in given:
        wanted = [1] * (2 - axes) + list(given["output_shape"])[-axes:]
    elif auto in (b"SAME_UPPER", b"SAME_LOWER"):
        wanted = [window.strides[axis] * shape[1 + axis] for axis in range(2)]
    elif auto == b"VALID":
        pads = [0, 0, 0, 0]
    if wanted is not None:
        for axis in range(2):
            total = natural[axis] - wanted[axis]
            half = max(total, 0) // 2  # the remainder is added at the end
            low = half if auto == b"SAME_UPPER" else max(total, 0) - half
            pads[axis], pads[axis + 2] = low, total - low
    border = [reach[axis % 2] - pads[axis] + (more[axis % 2] if axis >= 2 else 0) for axis in range(4)]
    if min(border) < 0:
        raise ExportError(f"{called(node)}: pads {pads} that extend past the window are not supported.")
    spread = (shape[0], *((shape[1 + axis] - 1) * window.strides[axis] + 1 for axis in range(2)))
    if spread != shape:
        places = np.arange(int(np.prod(spread))).reshape(spread)[:, :: window.strides[0], :: window.strides[1]]
        source = join(reader, node, [(source, places.ravel())], np.zeros(spread))
    turned = weight.reshape(groups, -1, *weight.shape[1:])[..., ::-1, ::-1].swapaxes(1, 2)
    turned = np.ascontiguousarray(turned.reshape(outputs, -1, *weight.shape[2:]))
    middle = reader.new(node, "planes")
    op = Conv(
        node.name,
        [source],
        middle,
        turned,
        bias,
        (1, 1),
        (border[0], border[1], border[2], border[3]),
        window.dilations,
        groups,
    )
    size = [spread[1 + axis] + border[axis] + border[axis + 2] - reach[axis] for axis in range(2)]
    if min(size) < 1:
        raise ExportError(f"{called(node)}: its result is empty.")
    reader.add(op, (outputs, *size))
    windows.back(reader, node, middle, axes)


@READERS.register("Gemm")
def _gemm(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    weight, bias = reader.needed(node, 1), reader.constant(node, 2)
    if given.get("transA"):
        raise ExportError(f"{called(node)}: transA would mix the examples of a batch.")
    if weight.ndim != 2:
        raise ExportError(f"{called(node)}: the constant has {weight.ndim} axes; a matrix is needed.")
    weight = given.get("alpha", 1.0) * (weight.T if given.get("transB") else weight)
    if bias is not None and bias.ndim == 2 and len(bias) > 1:
        if (bias != bias[:1]).any():
            raise ExportError(f"{called(node)}: a bias that differs between the examples of a batch is not supported.")
        bias = bias[:1]
    bias = given.get("beta", 1.0) * (np.zeros(1) if bias is None else bias)
    linear(reader, node, reader.value(node), weight, bias, node.output[0])


@READERS.register("MatMul")
def _matmul(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    constants = [index for index in range(2) if node.input[index] in reader.constants]
    if constants == [1]:
        weight = reader.needed(node, 1)
        if weight.ndim == 2:
            linear(reader, node, reader.value(node), weight, np.zeros(1), node.output[0])
            return
    if constants == [0] and reader.needed(node, 0).ndim == 2 and reader.rank(node.input[1]) > 2:
        # A @ x is (x' @ A')'.
        name = reader.value(node, 1)
        batch, rank = reader.batches[name], reader.rank(name)
        order = [*range(rank - 2), rank - 1, rank - 2]
        if batch.axis < rank - 2:
            turned = reader.full_view(node, name, lambda value: value.transpose(order), batch)
            middle = reader.new(node, "product")
            linear(reader, node, turned, reader.needed(node, 0).T, np.zeros(1), middle)
            reader.full_view(node, middle, lambda value: value.transpose(order), batch, node.output[0])
            return
    _product(reader, node)


def _stack(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return np.broadcast_to(value, shape).reshape(-1, *shape[-2:])


def _product(reader: Reader, node: onnx.NodeProto) -> None:
    """A product of two values, or of a value and a stack of constant matrices."""
    names = []
    for index in range(2):
        if node.input[index] in reader.constants:
            constant = reader.needed(node, index).astype(np.float32)
            if constant.ndim < 2 or (constant.ndim >= reader.rank(node.input[1 - index]) and len(constant) != 1):
                raise ExportError(f"{called(node)}: a constant of shape {constant.shape} is not supported here.")
            while constant.ndim >= reader.rank(node.input[1 - index]):
                constant = constant[0]
            names.append(join(reader, node, [], constant))
        else:
            names.append(reader.value(node, index))
            batch = reader.batches[names[-1]]
            if batch.axis >= reader.rank(names[-1]) - 2 or (batch.merged and len(reader.shapes[names[-1]]) != 3):
                raise ExportError(f"{called(node)}: it would mix the examples of a batch.")
    batches = {reader.batches[name] for name in names}
    if len(batches) > 1:
        raise ExportError(f"{called(node)}: the batch is not the same axis in both inputs.")
    (batch,) = batches
    (*first, m, k), (*second, k2, n) = (reader.shapes[name] for name in names)
    ranks = {reader.rank(name) for name in names if name in node.input}
    if k != k2 or len(ranks) > 1:
        raise ExportError(f"{called(node)}: {reader.shapes[names[0]]} and {reader.shapes[names[1]]} do not fit.")
    stacked = np.broadcast_shapes(tuple(first), tuple(second))
    a, b = (
        reader.view(node, name, partial(_stack, shape=(*stacked, *sizes)))
        for name, sizes in zip(names, ((m, k), (k, n)), strict=True)
    )
    middle = reader.new(node, "product")
    reader.add(Product(node.name, [a, b], middle), (reader.shapes[a][0], m, n))
    shape = (*stacked, m, n)
    reader.view(node, middle, lambda value: value.reshape(shape), node.output[0], batch)


def linear(
    reader: Reader, node: onnx.NodeProto, source: str, weight: np.ndarray, bias: np.ndarray, target: str
) -> None:
    """A linear layer on the last axis: on rows it is a convolution with a window of one pixel."""
    inputs, outputs = weight.shape
    shape, batch = reader.shapes[source], reader.batches[source]
    if batch.axis == reader.rank(source) - 1 or not shape or shape[-1] != inputs:
        raise ExportError(f"{called(node)}: weights of shape {weight.shape} do not fit {shape} inputs.")
    bias = np.broadcast_to(bias.astype(np.float32).reshape(-1), (outputs,)).copy()
    weight = weight.astype(np.float32)
    rows = int(np.prod(shape[:-1]))
    if shape == (inputs,):
        reader.add(Linear(node.name, [source], target, weight, bias), (outputs,), batch)
        return
    out = (*shape[:-1], outputs)
    middle = reader.new(node, "rows")
    if rows == 1:
        flat = reader.view(node, source, np.ravel)
        reader.add(Linear(node.name, [flat], middle, weight, bias), (outputs,))
        reader.view(node, middle, lambda value: value.reshape(out), target, batch)
        return
    planes = reader.view(node, source, lambda value: value.reshape(1, rows, inputs).transpose(2, 0, 1))
    window = weight.T[:, :, None, None]
    op = Conv(node.name, [planes], middle, np.ascontiguousarray(window), bias, (1, 1), (0, 0, 0, 0), (1, 1), 1)
    reader.add(op, (outputs, 1, rows))
    reader.view(node, middle, lambda value: value.transpose(1, 2, 0).reshape(out), target, batch)
