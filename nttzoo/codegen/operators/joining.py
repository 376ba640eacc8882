"""Operators that combine values and constants into one value: concatenation and padding."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.ir import Join
from nttzoo.codegen.reader import READERS, Batch, Reader, called
from nttzoo.errors import ExportError


def join(
    reader: Reader,
    node: onnx.NodeProto,
    parts: list[tuple[str, np.ndarray]],
    fill: np.ndarray,
    batch: Batch | None = None,
    target: str | None = None,
) -> str:
    """Values at given positions of an array that is constant elsewhere."""
    names, places = [name for name, _ in parts], [place for _, place in parts]
    op = Join(node.name, names, target or reader.new(node, "joined"), places, fill.astype(np.float32))
    return reader.add(op, fill.shape, batch)


@READERS.register("Concat")
def _concat(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    first = next(name for name in node.input if name in reader.shapes)
    batch, rank = reader.batches[first], reader.rank(first)
    axis = given.get("axis", 1) % rank
    own = reader.axis(node, axis, first)
    arrays: list[np.ndarray] = []
    for index, name in enumerate(node.input):
        if name in reader.shapes:
            if reader.batches[name] != batch:
                raise ExportError(f"{called(node)}: the batch is not the same axis in all inputs.")
            arrays.append(np.full(reader.shapes[name], index + 1.0))
        else:
            arrays.append(without_batch(reader, node, index, batch, rank))
    whose = np.concatenate(
        [
            np.full(array.shape, index if name in reader.shapes else -1)
            for index, (name, array) in enumerate(zip(node.input, arrays, strict=True))
        ],
        own,
    )
    fill = np.where(whose < 0, np.concatenate(arrays, own), 0)
    parts = [(name, np.flatnonzero(whose == index)) for index, name in enumerate(node.input) if name in reader.shapes]
    join(reader, node, parts, fill, batch, node.output[0])


def without_batch(reader: Reader, node: onnx.NodeProto, index: int, batch: Batch, rank: int) -> np.ndarray:
    """A constant input beside values of `rank` axes, for one example: it must be the same for all."""
    found = []
    for size, value in zip(reader.sizes, reader.both(node, index), strict=True):
        if value.ndim > rank:
            if any(s != 1 for s in value.shape[: value.ndim - rank]):
                raise ExportError(f"{called(node)}: a constant of shape {value.shape} has too many axes.")
            value = value.reshape(value.shape[value.ndim - rank :])
        axis = batch.axis - (rank - value.ndim)
        if axis >= 0 and not batch.merged:
            if value.shape[axis] not in (1, size) or (value != value.take([0], axis)).any():
                raise ExportError(f"{called(node)}: a constant that differs between the examples of a batch.")
            value = value.take(0, axis)
        elif axis >= 0 and value.shape[axis] != 1:
            raise ExportError(f"{called(node)}: a constant that differs between the rows of a batch.")
        found.append(value)
    if not np.array_equal(found[0], found[1]):
        raise ExportError(f"{called(node)}: input {index} depends on the size of the batch.")
    return found[0]


@READERS.register("Pad")
def _pad(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    mode = given.get("mode", b"constant").decode()
    value = given.get("value", 0.0)
    if reader.opset < 11:
        pads, axes = list(given.get("pads", given.get("paddings", []))), None
    else:
        pads, constant, third = reader.needed(node, 1).tolist(), reader.constant(node, 2), reader.constant(node, 3)
        value = 0.0 if constant is None else float(constant.item())
        axes = None if third is None else third.tolist()
    rank, batch = reader.rank(name), reader.batches[name]
    widths = [(0, 0)] * rank
    for axis, low, high in zip(
        range(rank) if axes is None else axes, pads[: len(pads) // 2], pads[len(pads) // 2 :], strict=True
    ):
        widths[axis % rank] = (low, high)
    if widths[batch.axis] != (0, 0) or (batch.merged and any(widths[batch.axis])):
        raise ExportError(f"{called(node)}: the batch cannot be padded.")
    sizes = reader.full(name)
    left = tuple(slice(max(-low, 0), size + min(high, 0)) for (low, high), size in zip(widths, sizes, strict=True))
    cropped = reader.full_view(node, name, lambda value: value[left], batch)
    grown = [(max(low, 0), max(high, 0)) for low, high in widths]
    if mode in ("edge", "reflect", "wrap"):
        moved: Any = partial(np.pad, pad_width=grown, mode=mode)
        reader.full_view(node, cropped, moved, batch, node.output[0])
    elif mode == "constant":
        own = grown if batch.merged else [grown[axis] for axis in range(rank) if axis != batch.axis]
        inside = np.pad(np.ones(reader.shapes[cropped], bool), own)
        parts = [(cropped, np.flatnonzero(inside))]
        join(reader, node, parts, np.where(inside, 0, value), batch, node.output[0])
    else:
        raise ExportError(f"{called(node)}: mode {mode!r} is not supported.")
