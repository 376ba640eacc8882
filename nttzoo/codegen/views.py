"""Moves views past operations, which then act on a layer's result and not on a transposed copy of it.

Exporters write convolutions channels first and everything else channels last. Views are free, but an operation between
two of them cannot be fused into the layer before.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nttzoo.codegen.ir import GroupNorm, Map, Op, Program, View

Move = Callable[[np.ndarray], np.ndarray]


def simplify(program: Program) -> None:
    """Merges consecutive views, and moves elementwise operations and norms before views."""
    changed = True
    while changed:
        changed = False
        for op in list(program.ops):
            changed |= _merge(program, op) or _skip(program, op) or _hoist(program, op)
    _drop_unused(program)


def order_of(program: Program, view: View) -> np.ndarray:
    """The index into its input of each element of a view."""
    shape = program.shapes[view.inputs[0]]
    return view.move(np.arange(int(np.prod(shape))).reshape(shape))


def _merge(program: Program, op: Op) -> bool:
    """Lets a view of a view read the source of both."""
    first = program.maker(op.inputs[0]) if isinstance(op, View) else None
    if not isinstance(op, View) or not isinstance(first, View) or op.after or first.after:
        return False
    op.inputs, op.move = list(first.inputs), _then(first.move, op.move)
    return True


def _skip(program: Program, op: Op) -> bool:
    """Lets the users of an identity view read its source."""
    if not isinstance(op, View) or op.output == program.target:
        return False
    users, source = program.users(op.output), op.inputs[0]
    if not users or program.shapes[source] != program.shapes[op.output]:
        return False
    order = order_of(program, op)
    if not np.array_equal(order, np.arange(order.size).reshape(order.shape)):
        return False
    for user in users:
        user.inputs = [source if name == op.output else name for name in user.inputs]
    return True


def _then(first: Move, second: Move) -> Move:
    return lambda value: second(first(value))


def _hoist(program: Program, op: Op) -> bool:
    """Turns view -> op into op -> view, if the view is a permutation and the same for all inputs."""
    views = [program.maker(name) for name in op.inputs]
    if not isinstance(op, Map | GroupNorm) or not all(isinstance(view, View) for view in views):
        return False
    orders = [order_of(program, view) for view in views if isinstance(view, View)]
    shapes = {program.shapes[view.inputs[0]] for view in views if view}
    if len(shapes) > 1 or any(not np.array_equal(orders[0], order) for order in orders[1:]):
        return False
    (shape,), order = shapes, orders[0].ravel()
    if isinstance(op, GroupNorm):
        if not np.array_equal(order, np.arange(int(np.prod(shape)))):
            return False
    elif not np.array_equal(np.sort(order), np.arange(int(np.prod(shape)))):
        return False
    else:
        op.scale, op.shift = (_undone(value, order, shape) for value in (op.scale, op.shift))
    first = views[0]
    assert isinstance(first, View)
    target, middle = op.output, f"{op.output}.viewed"
    program.shapes[middle] = shape
    op.inputs, op.output = [view.inputs[0] for view in views if view], middle
    program.ops.insert(program.ops.index(op) + 1, View(first.name, [middle], target, first.move))
    return True


def _undone(value: np.ndarray, order: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    before = np.empty(len(order), np.float32)
    before[order] = value.ravel()
    return before.reshape(shape)


def _drop_unused(program: Program) -> None:
    """Removes views without users."""
    while idle := [
        op
        for op in program.ops
        if isinstance(op, View) and op.output != program.target and not program.users(op.output)
    ]:
        program.ops = [op for op in program.ops if not any(op is other for other in idle)]
