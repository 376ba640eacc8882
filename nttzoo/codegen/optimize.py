"""Optimizes programs: fuses elementwise operations into their producers, removes dead and constant units."""

from __future__ import annotations

import numpy as np

from nttzoo.codegen import views
from nttzoo.codegen.choices import Choices
from nttzoo.codegen.functions import apply, never_decrease
from nttzoo.codegen.ir import Binary, Conv, GroupNorm, Join, Linear, Map, Op, Pool, Product, Program, Softmax, View


def optimize(program: Program, choices: Choices) -> dict[str, np.ndarray]:
    """Optimizes a program in place; returns {value: which of its elements are needed} (bool, of the value's shape)."""
    if choices.fuse:
        views.simplify(program)
        fuse(program)
    if not choices.trim:
        return {name: np.ones(shape, bool) for name, shape in program.shapes.items()}
    fold_constants(program)
    return find_needed(program)


# Fusing.


def fuse(program: Program, *, into_weights: bool = True) -> None:
    """Folds scales and shifts into weights, and fuses functions and pooling into their producers.

    With `into_weights=False`, weights stay unchanged; a shift may still become the bias of a layer that has none.
    """
    changed = True
    while changed:
        changed = False
        for op in list(program.ops):
            changed |= any(op is other for other in program.ops) and _fuse_one(program, op, into_weights)


def _fuse_one(program: Program, op: Op, into_weights: bool) -> bool:
    """Fuses an operation into the one before it, or swaps the two; returns whether it did."""
    maker = program.maker(op.inputs[0]) if len(op.inputs) == 1 else None
    if maker is None or len(program.users(maker.output)) > 1 or maker.output == program.target:
        return False
    if isinstance(op, Map):
        if isinstance(maker, GroupNorm) and not maker.after:
            _fold_into_norm(maker, op)
        elif not _is_function(op) and not _fold_affine(maker, op, into_weights):
            return False
        if not isinstance(maker, Conv | Linear | Pool | Map | GroupNorm | Binary | Product):
            return False
        maker.after += op.after
    elif isinstance(op, Pool) and op.kind == "max" and isinstance(maker, Conv) and maker.pool is None:
        # Monotonic functions commute with the maximum and are cheaper after it.
        if not never_decrease(maker.after):
            return False
        maker.pool = op
        maker.after += op.after
    else:
        return False
    program.ops.remove(op)
    maker.output = op.output
    return True


def _is_function(op: Map) -> bool:
    return bool((op.scale == 1).all() and (op.shift == 0).all())


def _fold_into_norm(maker: GroupNorm, op: Map) -> None:
    """Folds a scale and shift into those of a norm, which may be split into more and smaller channels."""
    size = op.scale.size
    scale = np.repeat(maker.scale, size // len(maker.scale)) * op.scale.ravel()
    bias = np.repeat(maker.bias, size // len(maker.bias)) * op.scale.ravel() + op.shift.ravel()
    for channels in [len(op.scale), *range(maker.groups, size + 1, maker.groups)]:
        if size % channels or channels % maker.groups:
            continue
        rows = [value.reshape(channels, -1) for value in (scale, bias)]
        if all((value == value[:, :1]).all() for value in rows):
            maker.scale, maker.bias = (value[:, 0].astype(np.float32) for value in rows)
            return


def _fold_affine(maker: Op, op: Map, into_weights: bool) -> bool:
    """Folds a scale and shift into those before it, or into weights, if they are constant on each plane."""
    if isinstance(maker, Map) and not maker.after:
        maker.shift = maker.shift * op.scale + op.shift
        maker.scale = maker.scale * op.scale
        return True
    if not isinstance(maker, Conv | Linear) or maker.after or getattr(maker, "pool", None):
        return False
    units = [value.reshape(len(value), -1) for value in (op.scale, op.shift)]
    if any((value != value[:, :1]).any() for value in units):
        return False
    scale, shift = (value[:, 0] for value in units)
    if not into_weights and ((scale != 1).any() or maker.bias.any()):
        return False
    per_unit = scale[:, None, None, None] if isinstance(maker, Conv) else scale
    maker.weight = (maker.weight * per_unit).astype(np.float32)
    maker.bias = (maker.bias * scale + shift).astype(np.float32)
    return True


# Constant units, which no input reaches, are folded into the biases of the next layer.


def fold_constants(program: Program) -> None:
    """Moves the contributions of constant units into biases and sets their weights to zero."""
    known: dict[str, np.ndarray] = {program.source: np.full(program.shapes[program.source], np.nan)}
    for op in program.ops:
        known[op.output] = _constants(program, op, [known[name] for name in op.inputs])


def _constants(program: Program, op: Op, inputs: list[np.ndarray]) -> np.ndarray:
    """The values of those output elements that do not depend on the input; NaN elsewhere."""
    if isinstance(op, View):
        return op.move(inputs[0])
    unknown = np.full(program.shapes[op.output], np.nan)
    if isinstance(op, Linear):
        units = ~np.isnan(inputs[0])
        op.bias = (op.bias + inputs[0][units] @ op.weight[units]).astype(np.float32)
        op.weight = np.where(units[:, None], 0, op.weight)
        return apply(op.after, np.where(op.weight.any(0), np.nan, op.bias))
    if isinstance(op, Conv):
        _fold_planes(op, inputs[0])
        alive = op.weight.any((1, 2, 3))
        unknown[~alive] = op.bias[~alive, None, None]
        return apply(op.after, unknown)
    if isinstance(op, Map):
        return apply(op.after, sum(inputs) * op.scale + op.shift)
    if isinstance(op, Join):
        joined = op.fill.astype(float).ravel()
        for place, value in zip(op.places, inputs, strict=True):
            joined[place] = value.ravel()
        return joined.reshape(op.fill.shape)
    if isinstance(op, Pool) and (op.kind == "max" or not any(op.pads)):
        constant = _plane_constants(inputs[0])
        unknown[...] = constant[:, None, None]
        return apply(op.after, unknown)
    return unknown


def _plane_constants(value: np.ndarray) -> np.ndarray:
    """[c, h, w] -> [c]: the constant that fills a plane, or NaN."""
    flat = value.reshape(len(value), -1)
    return np.where((flat == flat[:, :1]).all(1), flat[:, 0], np.nan)


def _fold_planes(op: Conv, value: np.ndarray) -> None:
    constant = _plane_constants(value)
    # Padding replaces the plane at the borders, so only a plane of zeros is constant everywhere.
    foldable = ~np.isnan(constant) & ((constant == 0) | (not any(op.pads)))
    per_group = len(value) // op.groups
    of_group = np.repeat(np.arange(op.groups), len(op.weight) // op.groups)
    channels = of_group[:, None] * per_group + np.arange(per_group)  # [o, c / groups]
    fold = foldable[channels]
    gain = np.where(fold, np.nan_to_num(constant)[channels], 0) * op.weight.sum((2, 3), dtype=np.float64)
    op.bias = (op.bias + gain.sum(1)).astype(np.float32)
    op.weight = np.where(fold[:, :, None, None], 0, op.weight)


# Dead units: what reaches no output need not be computed.


def find_needed(program: Program) -> dict[str, np.ndarray]:
    """Finds the elements of each value that an output depends on; sets weights into other units to zero."""
    needed = {name: np.zeros(shape, bool) for name, shape in program.shapes.items()}
    needed[program.target][...] = True
    for op in reversed(program.ops):
        if isinstance(op, Join):
            for name, place in zip(op.inputs, op.places, strict=True):
                needed[name] |= needed[op.output].ravel()[place].reshape(needed[name].shape)
            continue
        for name in op.inputs:
            needed[name] |= _needs(program, op, needed[op.output], needed[name].shape)
    return needed


def _needs(program: Program, op: Op, needed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The elements of an operation's input that its needed outputs depend on."""
    if isinstance(op, View):
        found = np.zeros(int(np.prod(shape)), bool)
        found[op.move(np.arange(found.size).reshape(shape))[needed]] = True
        return found.reshape(shape)
    if isinstance(op, Linear):
        op.weight = np.where(needed, op.weight, 0)
        return np.asarray(op.weight.any(1))
    if isinstance(op, Conv):
        used = np.asarray(needed.any((1, 2)))
        op.weight = np.where(used[:, None, None, None], op.weight, 0)
        grouped = op.weight.reshape(op.groups, -1, *op.weight.shape[1:])
        return np.broadcast_to(grouped.any((1, 3, 4)).reshape(-1, 1, 1), shape)
    if isinstance(op, Pool):
        return np.broadcast_to(needed.any((1, 2), keepdims=True), shape)
    if isinstance(op, GroupNorm | Product):
        return np.full(shape, needed.any())
    if isinstance(op, Softmax):
        return np.broadcast_to(needed.any(op.axis, keepdims=True), shape)
    return needed
