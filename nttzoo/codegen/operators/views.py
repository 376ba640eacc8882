"""Operators that pick and reorder elements: transposes, slices, gathers, splits, resizing."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.reader import READERS, Reader, called, evaluate
from nttzoo.errors import ExportError


@READERS.register("Transpose")
def _transpose(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    order = list(given.get("perm", reversed(range(reader.rank(name)))))
    batch = reader.batches[name]
    moved = batch.at(order.index(batch.axis))
    reader.full_view(node, name, lambda value: value.transpose(order), moved, node.output[0])


@READERS.register("Expand")
def _expand(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    shapes, batches = [], set()
    for size, target in zip(reader.sizes, reader.both(node, 1), strict=True):
        rank = max(len(target), reader.rank(name))
        axis = reader.batches[name].axis + rank - reader.rank(name)
        sizes = [1] * (rank - len(target)) + [int(s) for s in target]
        if sizes[axis] not in (1, reader.full(name)[reader.batches[name].axis] * size):
            raise ExportError(f"{called(node)}: the batch cannot be expanded.")
        sizes[axis] = 1
        shapes.append(sizes)
        batches.add(reader.batches[name].at(axis))
    if shapes[0] != shapes[1]:
        raise ExportError(f"{called(node)}: the shape depends on the size of the batch.")

    def expand(value: np.ndarray) -> np.ndarray:
        return np.broadcast_to(value, np.broadcast_shapes(value.shape, tuple(shapes[0])))

    reader.full_view(node, name, expand, batches.pop(), node.output[0])


@READERS.register("Tile")
def _tile(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name, repeats = reader.value(node), [int(count) for count in reader.needed(node, 1)]
    if repeats[reader.batches[name].axis] != 1:
        raise ExportError(f"{called(node)}: the batch cannot be repeated.")
    reader.full_view(node, name, lambda value: np.tile(value, repeats), reader.batches[name], node.output[0])


@READERS.register("Slice")
def _slice(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    if reader.opset < 10:
        begins, ends, steps = [given["starts"]] * 2, [given["ends"]] * 2, None
        axes = given.get("axes")
    else:
        begins, ends = ([np.atleast_1d(value).tolist() for value in reader.both(node, index)] for index in (1, 2))
        third, fourth = reader.constant(node, 3), reader.constant(node, 4)
        axes = None if third is None else third.tolist()
        steps = None if fourth is None else fourth.tolist()
    full, batch = reader.full(name), reader.batches[name]
    where = [slice(None)] * len(full)
    count = len(begins[0])
    for index, (axis, step) in enumerate(zip(axes or range(count), steps or [1] * count, strict=True)):
        own = axis % len(full)
        (start, other_start), (end, other_end) = ((pair[0][index], pair[1][index]) for pair in (begins, ends))
        if own == batch.axis:
            sizes = [size * full[own] for size in reader.sizes]
            if start == other_start == 0 and step == 1 and end >= sizes[0] and other_end >= sizes[1]:
                continue
            raise ExportError(f"{called(node)}: the batch cannot be sliced.")
        if start != other_start or end != other_end:
            raise ExportError(f"{called(node)}: the slice depends on the size of the batch.")
        # Going backwards, an end before the first element is not Python's -1.
        stop = None if step < 0 and end < -full[own] else end
        where[own] = slice(start, stop, step)
    reader.full_view(node, name, lambda value: value[tuple(where)], reader.batches[name], node.output[0])
    _check_not_empty(reader, node)


def _check_not_empty(reader: Reader, node: onnx.NodeProto) -> None:
    for name in node.output:
        if name in reader.shapes and not all(reader.shapes[name]):
            raise ExportError(f"{called(node)}: its result is empty.")


@READERS.register("Gather")
def _gather(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name, index = reader.value(node), reader.needed(node, 1)
    batch, rank = reader.batches[name], reader.rank(name)
    axis = given.get("axis", 0) % rank
    size = reader.full(name)[axis]
    if axis == batch.axis:
        raise ExportError(f"{called(node)}: axis {axis} is the batch: examples would be mixed.")
    if ((index < -size) | (index >= size)).any():
        raise ExportError(f"{called(node)}: indices outside of [{-size}, {size}).")
    moved = batch.at(batch.axis + (index.ndim - 1 if axis < batch.axis else 0))
    reader.full_view(node, name, lambda value: np.take(value, index, axis, mode="wrap"), moved, node.output[0])


@READERS.register("Split")
def _split(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    axis = given.get("axis", 0) % reader.rank(name)
    own = reader.axis(node, axis)
    size = reader.shapes[name][own]
    sizes = given.get("split")
    if (constant := reader.constant(node, 1)) is not None:
        sizes = constant.tolist()
    if sizes is None:
        part = -(-size // len(node.output))
        sizes = [min(part, size - part * index) for index in range(len(node.output))]
    if sum(sizes) != size or min(sizes) < 1:
        raise ExportError(f"{called(node)}: parts of sizes {list(sizes)} do not make {size}.")
    edges = np.cumsum([0, *sizes])
    for begin, end, target in zip(edges[:-1], edges[1:], node.output, strict=True):
        taken = partial(np.take, indices=np.arange(begin, end), axis=own)
        reader.view(node, name, taken, target, reader.batches[name])


def _resize(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    """The nearest pixels: ONNX's own reference says which they are."""
    name = reader.value(node)
    if (
        given.get("mode", b"nearest") != b"nearest"
        or given.get("coordinate_transformation_mode") == b"tf_crop_and_resize"
    ):
        raise ExportError(f"{called(node)}: only mode 'nearest' is supported, without cropping.")
    full, batch = reader.full(name), reader.batches[name]
    known = {other: reader.constants[other] for other in node.input[1:] if other in reader.constants}
    if any(other in reader.others for other in node.input[1:]):
        sizes = reader.both(node, 3)[0].copy()
        sizes[batch.axis] = 1
        known[node.input[3]] = sizes
    scales = reader.constant(node, 2)
    if scales is not None and scales.size:
        sizes = scales.astype(float) * [full[axis] for axis in given.get("axes", range(len(full)))]
        if (np.abs(sizes - np.round(sizes)) > 1e-5 * sizes).any():
            raise ExportError(f"{called(node)}: runtimes disagree about sizes that are not whole: {sizes.tolist()}.")
    places = np.arange(int(np.prod(full)), dtype=np.float64).reshape(full)
    (moved,) = evaluate(node, {node.input[0]: places, **known}, max(reader.opset, 11))
    where = moved.astype(int)
    if where.shape[batch.axis] != full[batch.axis]:
        raise ExportError(f"{called(node)}: the batch cannot be resized.")
    reader.full_view(node, name, lambda value: value.ravel()[where], batch, node.output[0])


READERS.register("Resize")(_resize)


@READERS.register("DepthToSpace")
def _depth_to_space(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    c, h, w = reader.shape(node, rank=3)
    b = given["blocksize"]
    if given.get("mode", b"DCR") == b"DCR":
        split, order = (b, b, c // b**2, h, w), (2, 3, 0, 4, 1)
    else:
        split, order = (c // b**2, b, b, h, w), (0, 3, 1, 4, 2)
    shape = (c // b**2, h * b, w * b)
    reader.view(node, node.input[0], lambda x: x.reshape(split).transpose(order).reshape(shape), node.output[0])


@READERS.register("SpaceToDepth")
def _space_to_depth(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    c, h, w = reader.shape(node, rank=3)
    b = given["blocksize"]
    split, shape = (c, h // b, b, w // b, b), (c * b * b, h // b, w // b)
    order = (2, 4, 0, 1, 3) if given.get("mode", b"DCR") == b"DCR" else (0, 2, 4, 1, 3)
    reader.view(
        node,
        node.input[0],
        lambda x: x.reshape(split).transpose(order).reshape(shape),
        node.output[0],
    )
