"""Operators that move elements: shapes, slices, transposes; concatenation and padding."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.ir import Dropout, Join
from nttzoo.codegen.reader import READERS, Batch, Reader, called, evaluate
from nttzoo.errors import ExportError


@READERS.register("Flatten")
def _flatten(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    axis = given.get("axis", 1)
    axis += len(reader.full(name)) if axis < 0 else 0
    targets = []
    for size in reader.sizes:
        full = _sized(reader, name, size)
        targets.append(np.array([int(np.prod(full[:axis])), int(np.prod(full[axis:]))]))
    _reshape_to(reader, node, targets, name, node.output[0])


@READERS.register("Reshape")
def _reshape(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    # Opset 1 had the shape as an attribute.
    targets = [np.array(given["shape"])] * 2 if "shape" in given else list(reader.both(node, 1))
    name = reader.value(node)
    resolved = []
    for size, target in zip(reader.sizes, targets, strict=True):
        full = _sized(reader, name, size)
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


def _sized(reader: Reader, name: str, size: int) -> list[int]:
    """A value's ONNX shape for a batch of some size."""
    full = reader.full(name)
    full[reader.batches[name].axis] *= size
    return full


def _reshape_to(reader: Reader, node: onnx.NodeProto, targets: list[np.ndarray], name: str, target: str) -> None:
    """A reshape to shapes for both sizes of the batch, which must keep it in one axis."""
    found = [_find_batch(reader, node, name, size, sizes) for size, sizes in zip(reader.sizes, targets, strict=True)]
    if found[0] != found[1]:
        raise ExportError(f"{called(node)}: shape {targets[0].tolist()} would mix the examples of a batch.")
    sizes, batch = found[0]
    reader.full_view(node, name, lambda value: value.reshape(sizes), batch, target)


def _find_batch(
    reader: Reader, node: onnx.NodeProto, name: str, size: int, target: np.ndarray
) -> tuple[tuple[int, ...], Batch]:
    """(shape for one example with its batch axis, where the batch goes): the axis that starts where it started."""
    batch = reader.batches[name]
    before = int(np.prod(reader.full(name)[: batch.axis])) * batch.outer
    sizes = [int(s) for s in target]
    if int(np.prod(sizes)) != size * int(np.prod(reader.full(name))):
        raise ExportError(f"{called(node)}: shape {sizes} does not fit {_sized(reader, name, size)}.")
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


@READERS.register("Transpose")
def _transpose(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    order = list(given.get("perm", reversed(range(reader.rank(name)))))
    batch = reader.batches[name]
    moved = batch.at(order.index(batch.axis))
    reader.full_view(node, name, lambda value: value.transpose(order), moved, node.output[0])


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
            raise ExportError(f"{called(node)}: without axes the batch itself would go.")
    axes = [axis % len(full) for axis in axes]
    if batch.axis in axes or any(full[axis] != 1 for axis in axes):
        raise ExportError(f"{called(node)}: axes {axes} of a value of shape {full} (one example) cannot go.")
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


def join(
    reader: Reader,
    node: onnx.NodeProto,
    parts: list[tuple[str, np.ndarray]],
    fill: np.ndarray,
    batch: Batch | None = None,
    target: str | None = None,
) -> str:
    """Values at their places in an array that holds constants elsewhere."""
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
    """A constant input beside values of `rank` axes, as it is for one example: it must be the same for all."""
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


@READERS.register("Shape")
def _shape(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    shapes = [np.array(_sized(reader, name, size), np.int64) for size in reader.sizes]
    part = slice(given.get("start", 0), given.get("end"))
    reader.set_pair(node.output[0], shapes[0][part], shapes[1][part])


@READERS.register("Size")
def _size(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name = reader.value(node)
    sizes = [np.array(np.prod(_sized(reader, name, size)), np.int64) for size in reader.sizes]
    reader.set_pair(node.output[0], sizes[0], sizes[1])


@READERS.register("Dropout")
def _dropout(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    ratio, mode = reader.constant(node, 1), reader.constant(node, 2)
    rate = given.get("ratio", 0.5) if ratio is None else ratio.item()
    random = (mode is not None and mode.item()) or (reader.opset < 7 and not given.get("is_test"))
    if not reader.training and random and rate:
        raise ExportError(f"{called(node)} is in training mode: its answers are random. Export it for inference.")
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
        reader.constants[node.output[0]] = onnx.numpy_helper.to_array(value)
    elif kind in types:
        reader.constants[node.output[0]] = np.array(value, types[kind])
    else:
        raise ExportError(f"{called(node)}: constants given as {kind} are not supported.")
