"""Operators that reshape a value and keep its elements in order; shapes as values."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.reader import READERS, Batch, Reader, called
from nttzoo.errors import ExportError


@READERS.register("Flatten")
def _flatten(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    axis = given.get("axis", 1)
    axis += len(reader.full(name)) if axis < 0 else 0
    targets = []
    for size in reader.sizes:
        full = _batched_shape(reader, name, size)
        targets.append(np.array([int(np.prod(full[:axis])), int(np.prod(full[axis:]))]))
    _reshape_to(reader, node, targets, name, node.output[0])


@READERS.register("Reshape")
def _reshape(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    # Opset 1 had the shape as an attribute.
    targets = [np.array(given["shape"])] * 2 if "shape" in given else list(reader.both(node, 1))
    name = reader.value(node)
    resolved = []
    for size, target in zip(reader.sizes, targets, strict=True):
        full = _batched_shape(reader, name, size)
        sizes = [int(s) for s in target]
        zero = bool(given.get("allowzero"))
        if any(s == 0 and not zero and i >= len(full) for i, s in enumerate(sizes)) or sizes.count(-1) > 1:
            raise ExportError(f"{called(node)}: shape {sizes} does not fit {full}.")
        sizes = [full[i] if s == 0 and not zero else s for i, s in enumerate(sizes)]
        if -1 in sizes:
            known = int(np.prod([s for s in sizes if s != -1]))
            if known < 1 or int(np.prod(full)) % known:
                raise ExportError(f"{called(node)}: shape {sizes} does not fit {full}.")
            sizes[sizes.index(-1)] = int(np.prod(full)) // known
        resolved.append(np.array(sizes))
    _reshape_to(reader, node, resolved, name, node.output[0])


def _batched_shape(reader: Reader, name: str, size: int) -> list[int]:
    """A value's ONNX shape for a batch of some size."""
    full = reader.full(name)
    full[reader.batches[name].axis] *= size
    return full


def _reshape_to(reader: Reader, node: onnx.NodeProto, targets: list[np.ndarray], name: str, target: str) -> None:
    """A reshape, given for both batch sizes, that must keep the batch in one axis."""
    found = [_find_batch(reader, node, name, size, sizes) for size, sizes in zip(reader.sizes, targets, strict=True)]
    if found[0] != found[1]:
        raise ExportError(f"{called(node)}: shape {targets[0].tolist()} would mix the examples of a batch.")
    sizes, batch = found[0]
    reader.full_view(node, name, lambda value: value.reshape(sizes), batch, target)


def _find_batch(
    reader: Reader, node: onnx.NodeProto, name: str, size: int, target: np.ndarray
) -> tuple[tuple[int, ...], Batch]:
    """(shape for one example with its batch axis, the new batch axis): the one that begins at the same element."""
    batch = reader.batches[name]
    before = int(np.prod(reader.full(name)[: batch.axis])) * batch.outer
    sizes = [int(s) for s in target]
    if int(np.prod(sizes)) != size * int(np.prod(reader.full(name))):
        raise ExportError(f"{called(node)}: shape {sizes} does not fit {_batched_shape(reader, name, size)}.")
    found = []
    for axis, length in enumerate(sizes):
        ahead = int(np.prod(sizes[:axis]))
        outer = before // max(ahead, 1)
        if ahead and before % ahead == 0 and length % (size * outer) == 0:
            found.append(Batch(axis, length != size, outer))
    if not found:
        raise ExportError(f"{called(node)}: shape {sizes} would mix the examples of a batch.")
    best = min(found, key=lambda batch: (batch.merged, batch.axis))
    sizes[best.axis] //= size
    return tuple(sizes), best


def axes_of(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> list[int] | None:
    """Axes, from an attribute or, since opset 13 or 18, from the second input."""
    constant = reader.constant(node, 1)
    return given.get("axes") if constant is None else [int(axis) for axis in np.atleast_1d(constant)]


@READERS.register("Squeeze")
def _squeeze(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    full, batch = reader.full(name), reader.batches[name]
    axes = axes_of(reader, node, given)
    if axes is None:
        axes = [axis for axis, size in enumerate(full) if size == 1 and (axis != batch.axis)]
        if reader.sizes == (1, 1):
            raise ExportError(f"{called(node)}: without axes, the batch axis would be removed too.")
    axes = [axis % len(full) for axis in axes]
    if batch.axis in axes or any(full[axis] != 1 for axis in axes):
        raise ExportError(f"{called(node)}: axes {axes} of a value of shape {full} (one example) cannot be removed.")
    moved = batch.at(batch.axis - sum(axis < batch.axis for axis in axes))
    reader.full_view(node, name, lambda value: value.squeeze(tuple(axes)), moved, node.output[0])


@READERS.register("Unsqueeze")
def _unsqueeze(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    axes = axes_of(reader, node, given) or []
    rank, batch = reader.rank(name) + len(axes), reader.batches[name]
    axes = [axis % rank for axis in axes]
    left = [axis for axis in range(rank) if axis not in axes]
    moved = batch.at(left[batch.axis])
    reader.full_view(node, name, lambda value: np.expand_dims(value, axes), moved, node.output[0])


@READERS.register("Shape")
def _shape(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    shapes = [np.array(_batched_shape(reader, name, size), np.int64) for size in reader.sizes]
    part = slice(given.get("start", 0), given.get("end"))
    reader.set_pair(node.output[0], shapes[0][part], shapes[1][part])


@READERS.register("Size")
def _size(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    sizes = [np.array(np.prod(_batched_shape(reader, name, size)), np.int64) for size in reader.sizes]
    reader.set_pair(node.output[0], sizes[0], sizes[1])
