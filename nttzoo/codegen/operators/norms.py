"""Normalization by stored statistics, or by those of groups of channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.ir import GroupNorm
from nttzoo.codegen.reader import READERS, Reader, called
from nttzoo.errors import ExportError


@READERS.register("BatchNormalization")
def _batch_norm(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    shape = reader.shape(node)
    # From opset 7 to 13, training mode was expressed by the statistics as outputs.
    if given.get("training_mode") or (reader.opset < 7 and not given.get("is_test")) or any(node.output[1:]):
        raise ExportError(f"{called(node)} is in training mode: it mixes examples. Export it for inference.")
    if reader.opset < 9 and not given.get("spatial", 1):
        raise ExportError(f"{called(node)}: statistics per pixel (spatial=0) are not supported.")
    scale, bias, mean, variance = (reader.needed(node, index) for index in range(1, 5))
    slope = scale / np.sqrt(variance + given.get("epsilon", 1e-5))
    channels = (-1,) + (1,) * (len(shape) - 1)
    reader.map(
        node,
        [node.input[0]],
        node.output[0],
        slope.reshape(channels),
        (bias - mean * slope).reshape(channels),
    )


def _group_norm(
    reader: Reader, node: onnx.NodeProto, groups: int, epsilon: float, scale: np.ndarray, bias: np.ndarray
) -> None:
    """A norm over groups of the first axis's channels."""
    shape = reader.shape(node)
    if groups < 1 or shape[0] % groups or len(scale) != shape[0] or len(bias) != shape[0]:
        raise ExportError(f"{called(node)}: {groups} groups, scale and bias do not fit {shape[0]} channels.")
    op = GroupNorm(node.name, [node.input[0]], node.output[0], groups, epsilon, scale, bias)
    reader.add(op, shape)


@READERS.register("InstanceNormalization")
def _instance_norm(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    channels = reader.shape(node)[0]
    scale, bias = reader.needed(node, 1), reader.needed(node, 2)
    _group_norm(reader, node, channels, given.get("epsilon", 1e-5), scale, bias)


@READERS.register("GroupNormalization")
def _group_normalization(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    channels, groups = reader.shape(node)[0], given["num_groups"]
    scale, bias = reader.needed(node, 1), reader.needed(node, 2)
    if reader.opset < 21 and groups and channels % groups == 0:  # one number per group then
        scale, bias = np.repeat(scale, channels // groups), np.repeat(bias, channels // groups)
    _group_norm(reader, node, groups, given.get("epsilon", 1e-5), scale, bias)


@READERS.register("LayerNormalization")
def _layer_norm(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    shape = reader.shapes[reader.value(node)]
    if any(node.output[1:]):
        raise ExportError(f"{called(node)}: only the normalized value is supported as output, not mean and deviation.")
    first = reader.axis(node, given.get("axis", -1))
    if reader.batches[reader.value(node)].axis > first:
        raise ExportError(f"{called(node)}: it would mix the examples of a batch.")
    middle = reader.new(node, "normalized")
    normalize(reader, node, tuple(range(first, len(shape))), given.get("epsilon", 1e-5), middle)
    bias = reader.constant(node, 2)
    reader.map(node, [middle], node.output[0], reader.needed(node, 1), 0.0 if bias is None else bias)


@READERS.register("Normalize")  # made by `patterns`
def _normalize(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    axes = tuple(reader.axis(node, axis) for axis in given["axes"])
    normalize(reader, node, axes, given["epsilon"], node.output[0])


def normalize(reader: Reader, node: onnx.NodeProto, axes: tuple[int, ...], epsilon: float, target: str) -> None:
    """Mean 0 and variance 1 over some axes; every element of the other axes is a group.

    If the last axis is a group's channels, it becomes the first axis of the group, which turns a norm of channels-last
    arrays into one of channels-first arrays.
    """
    shape, batch = reader.shapes[reader.value(node)], reader.batches[reader.value(node)]
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    tail = [axis for axis in axes if not kept or axis > max(kept)]
    order = [*kept, *tail, *(axis for axis in axes if axis not in tail)]
    groups = int(np.prod([shape[axis] for axis in kept]))
    grouped = reader.view(
        node, node.input[0], lambda value: value.transpose(order).reshape(groups, -1), reader.new(node, "grouped")
    )
    middle = reader.new(node, "normed")
    ones, zeros = np.ones(groups, np.float32), np.zeros(groups, np.float32)
    reader.add(GroupNorm(node.name, [grouped], middle, groups, epsilon, ones, zeros), reader.shapes[grouped])
    moved = [shape[axis] for axis in order]
    reader.view(node, middle, lambda value: value.reshape(moved).transpose(np.argsort(order)), target, batch)
