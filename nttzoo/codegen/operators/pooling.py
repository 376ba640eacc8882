"""Pooling, and means and maxima over whole axes, which are pooling with a large window."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.ir import Pool
from nttzoo.codegen.operators import windows
from nttzoo.codegen.reader import READERS, Reader, called
from nttzoo.errors import ExportError


def _pool(kind: str, reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    shape = reader.shape(node, rank=3)
    window, strides = tuple(given["kernel_shape"]), tuple(given.get("strides", (1, 1)))
    if given.get("ceil_mode") or any(d != 1 for d in given.get("dilations", (1, 1))) or len(node.output) > 1:
        raise ExportError(f"{called(node)}: ceil_mode, dilations and indices are not supported.")
    pads = windows.pads(node, given, shape[1:], window, strides, (1, 1))
    places = windows.places(node, shape[1:], window, strides, pads, (1, 1))
    counts = bool(given.get("count_include_pad"))
    op = Pool(node.name, [node.input[0]], node.output[0], kind, window, strides, pads, counts)
    reader.add(op, (shape[0], *places))


READERS.register("MaxPool")(partial(_pool, "max"))
READERS.register("AveragePool")(partial(_pool, "average"))


@READERS.register("GlobalAveragePool")
def _global_pool(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    _pool("average", reader, node, {"kernel_shape": reader.shape(node, rank=3)[1:]})


def _reduce(kind: str, reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    """Axes that go are brought to the end and pooled; a sum is a mean times their size."""
    shape = reader.shape(node)
    axes = given.get("axes")
    if (constant := reader.constant(node, 1)) is not None:
        axes = constant.tolist()
    if not axes:
        raise ExportError(f"{called(node)}: without axes the examples of a batch would be mixed.")
    gone = sorted({reader.axis(node, axis, len(shape)) for axis in axes})
    kept = [axis for axis in range(len(shape)) if axis not in gone]
    left = [shape[axis] for axis in kept]
    # A plane of two axes stays one: it may lie in memory just so.
    sizes = [shape[axis] for axis in gone]
    window = (sizes[0], sizes[1]) if len(sizes) == 2 else (1, int(np.prod(sizes)))
    planes = reader.view(
        node,
        node.input[0],
        lambda value: value.transpose([*kept, *gone]).reshape(-1, *window),
        reader.new(node, "planes"),
    )
    pooled = reader.new(node, "pooled")
    op = Pool(node.name, [planes], pooled, "max" if kind == "max" else "average", window, (1, 1), (0, 0, 0, 0))
    reader.add(op, (int(np.prod(left)), 1, 1))
    target = [1 if axis in gone else size for axis, size in enumerate(shape)] if given.get("keepdims", 1) else left
    if kind != "sum":
        reader.view(node, pooled, lambda value: value.reshape(target), node.output[0])
        return
    sums = reader.view(node, pooled, lambda value: value.reshape(target), reader.new(node, "means"))
    reader.map(node, [sums], node.output[0], scale=float(np.prod(window)))


READERS.register("ReduceMean")(partial(_reduce, "mean"))
READERS.register("ReduceSum")(partial(_reduce, "sum"))
READERS.register("ReduceMax")(partial(_reduce, "max"))
