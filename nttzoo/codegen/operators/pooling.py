"""Pooling, and sums, means and maxima over whole axes, which are pooling with a large window."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.functions import Function
from nttzoo.codegen.ir import Pool
from nttzoo.codegen.operators import windows
from nttzoo.codegen.operators.joining import join
from nttzoo.codegen.operators.shapes import axes_of
from nttzoo.codegen.reader import READERS, Reader, called
from nttzoo.errors import ExportError


def _pool(kind: str, reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    if any(node.output[1:]):
        raise ExportError(f"{called(node)}: indices, its second output, are not supported.")
    source, axes = windows.planes(reader, node)
    channels, *size = reader.shapes[source]
    window = windows.window(node, given, tuple(size), tuple(given["kernel_shape"]), axes)
    if kind == "average" and reader.opset < 7 and any(window.pads):
        raise ExportError(f"{called(node)}: before opset 7 ONNX does not say whether averages count the pads.")
    ceil, counts = bool(given.get("ceil_mode")), bool(given.get("count_include_pad"))
    places = window.places(node, tuple(size), ceil)
    if any(pad >= reach for pad, reach in zip(window.pads, _reach(window) * 2, strict=True)):
        raise ExportError(f"{called(node)}: pads as large as the window are not supported.")
    recount = kind == "average" and (window.dilations != (1, 1) or (ceil and counts))
    target = node.output[0] if axes == 2 and not recount else reader.new(node, "planes")
    if window.dilations != (1, 1):
        pooled = _dilated(kind, reader, node, source, window, places, target)
    else:
        op = Pool(node.name, [source], target, kind, window.size, window.strides, window.pads, counts)
        pooled = reader.add(op, (channels, *places))
    if recount:
        pooled = _recounted(reader, node, pooled, window, tuple(size), places, counts)
    if pooled != node.output[0]:
        windows.back(reader, node, pooled, axes)


def _reach(window: windows.Window) -> tuple[int, int]:
    first, second = (d * (k - 1) + 1 for d, k in zip(window.dilations, window.size, strict=True))
    return first, second


def _seen(window: windows.Window, size: tuple[int, ...], places: tuple[int, int], axis: int) -> np.ndarray:
    """[positions, window]: the rows (or columns) of the window at each position, including those outside."""
    starts = np.arange(places[axis]) * window.strides[axis] - window.pads[axis]
    return starts[:, None] + np.arange(window.size[axis]) * window.dilations[axis]


def _dilated(
    kind: str,
    reader: Reader,
    node: onnx.NodeProto,
    source: str,
    window: windows.Window,
    places: tuple[int, int],
    target: str,
) -> str:
    """Dilated windows: the pixels of each are copied to adjacent ones, with a border around all."""
    channels, height, width = reader.shapes[source]
    rows, columns = (_seen(window, (height, width), places, axis) for axis in range(2))
    border = np.full((channels, height + 1, width + 1), -3.4e38 if kind == "max" else 0.0)  # one row and column do
    inside = np.zeros(border.shape, bool)
    inside[:, :height, :width] = True
    bordered = join(reader, node, [(source, np.flatnonzero(inside))], np.where(inside, 0, border))
    rows = np.where((rows >= 0) & (rows < height), rows, height)
    columns = np.where((columns >= 0) & (columns < width), columns, width)
    count = window.size[0] * window.size[1]
    where = (slice(None), rows[:, None, :, None], columns[None, :, None, :])
    seen = reader.view(node, bordered, lambda value: value[where].reshape(-1, 1, count))
    middle = reader.new(node, "seen")
    op = Pool(node.name, [seen], middle, kind, (1, count), (1, 1), (0, 0, 0, 0), True)
    reader.add(op, (channels * places[0] * places[1], 1, 1))
    return reader.view(node, middle, lambda value: value.reshape(channels, *places), target)


def _recounted(
    reader: Reader,
    node: onnx.NodeProto,
    pooled: str,
    window: windows.Window,
    size: tuple[int, ...],
    places: tuple[int, int],
    counts: bool,
) -> str:
    """Averages divided by the number of pixels that count, instead of by the size of the window."""
    number = np.ones(1)
    for axis in range(2):
        seen = _seen(window, size, places, axis)
        low = -window.pads[axis] if counts else 0
        high = size[axis] + (window.pads[axis + 2] if counts else 0)
        number = np.multiply.outer(number, ((seen >= low) & (seen < high)).sum(1))
    return reader.map(node, [pooled], scale=window.size[0] * window.size[1] / number.reshape(places))


READERS.register("MaxPool")(partial(_pool, "max"))
READERS.register("AveragePool")(partial(_pool, "average"))


def _global_pool(kind: str, reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    shape = reader.shape(node)
    reduce(reader, node, kind, list(range(2, len(shape) + 1)), True, node.output[0])


READERS.register("GlobalAveragePool")(partial(_global_pool, "average"))
READERS.register("GlobalMaxPool")(partial(_global_pool, "max"))


def reduce(
    reader: Reader, node: onnx.NodeProto, kind: str, axes: list[int], keep: bool, target: str, source: str | None = None
) -> str:
    """The average or maximum over axes (of the ONNX value), which are moved to the end and pooled."""
    name = source or reader.value(node)
    shape, batch = reader.shapes[name], reader.batches[name]
    gone = sorted({reader.axis(node, axis, name) for axis in axes})
    rank = reader.rank(name)
    numbers = sorted({axis % rank for axis in axes})
    kept = [axis for axis in range(len(shape)) if axis not in gone]
    sizes = [shape[axis] for axis in gone]
    # Two axes stay a plane, which may be contiguous in memory already.
    window = (sizes[0], sizes[1]) if len(sizes) == 2 else (1, int(np.prod(sizes)))
    planes = reader.view(node, name, lambda value: value.transpose([*kept, *gone]).reshape(-1, *window))
    pooled = reader.new(node, "pooled")
    op = Pool(node.name, [planes], pooled, kind, window, (1, 1), (0, 0, 0, 0))
    reader.add(op, (int(np.prod([shape[axis] for axis in kept])), 1, 1))
    left = [1 if axis in gone else size for axis, size in enumerate(shape) if keep or axis not in gone]
    moved = batch if keep else batch.at(batch.axis - sum(axis < batch.axis for axis in numbers))
    return reader.view(node, pooled, lambda value: value.reshape(left), target, moved)


# The functions before it, whether the average is multiplied by the count, and the functions after it.
_REDUCTIONS: dict[str, tuple[str, tuple[Function, ...], bool, tuple[Function, ...]]] = {
    "ReduceMean": ("average", (), False, ()),
    "ReduceSum": ("average", (), True, ()),
    "ReduceMax": ("max", (), False, ()),
    "ReduceL1": ("average", (("abs",),), True, ()),
    "ReduceL2": ("average", (("square",),), True, (("sqrt",),)),
    "ReduceSumSquare": ("average", (("square",),), True, ()),
    "ReduceLogSum": ("average", (), True, (("log",),)),
}


def _reduce(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    axes = axes_of(reader, node, given)
    if not axes and given.get("noop_with_empty_axes"):
        raise ExportError(f"{called(node)}: noop_with_empty_axes without axes is not supported.")
    if not axes:
        raise ExportError(f"{called(node)}: without axes the examples of a batch would be mixed.")
    keep = bool(given.get("keepdims", 1))
    if node.op_type == "ReduceMin":
        turned = reader.map(node, [name], scale=-1.0)
        reduced = reduce(reader, node, "max", axes, keep, reader.new(node, "reduced"), turned)
        reader.map(node, [reduced], node.output[0], scale=-1.0)
        return
    kind, before, summed, after = _REDUCTIONS[node.op_type]
    if before:
        name = reader.map(node, [name], after=before)
    if not summed and not after:
        reduce(reader, node, kind, axes, keep, node.output[0], name)
        return
    reduced = reduce(reader, node, kind, axes, keep, reader.new(node, "reduced"), name)
    count = np.prod([reader.shapes[name][reader.axis(node, axis, name)] for axis in axes])
    reader.map(node, [reduced], node.output[0], scale=float(count) if summed else 1.0, after=after)


for _onnx_name in (*_REDUCTIONS, "ReduceMin"):
    READERS.register(_onnx_name)(_reduce)
