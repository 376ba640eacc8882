"""From a traced program to the graph of a training step.

Views are free: each value of the program is a value of the graph and the order of its elements.
"""

from __future__ import annotations

import numpy as np

from nttzoo.codegen.ir import (
    Conv,
    Dropout,
    Function,
    GroupNorm,
    Join,
    Linear,
    Map,
    Op,
    Pool,
    Program,
    View,
    conv_planes,
)
from nttzoo.codegen.training import rectifiers
from nttzoo.codegen.training.functions import FUNCTIONS
from nttzoo.codegen.training.graph import (
    Activation,
    Affine,
    Concatenation,
    Copy,
    Drop,
    Graph,
    Node,
    Normalization,
    Planes,
    Pooling,
    Sum,
    Value,
)
from nttzoo.codegen.training.layout import as_planes, is_whole, lay_out
from nttzoo.codegen.training.trace import parameters_in
from nttzoo.errors import ExportError


def resolve(program: Program) -> Graph:
    """The graph of a traced program."""
    return _Resolver(program).graph()


class _Resolver:
    def __init__(self, program: Program):
        self.program = program
        self.nodes: list[Node] = []
        self.values: list[Value] = []
        self.streams = 0
        # For each value of the program: a value of the graph, and its elements in the program's order and shape.
        self.seen: dict[str, tuple[Value, np.ndarray]] = {}

    def graph(self) -> Graph:
        source = self.make_source()
        input_order = self.seen[self.program.source][1].ravel()
        for op in self.program.ops:
            self.seen[op.output] = self.resolve(op)
        target, order = self.seen[self.program.target]
        if order.ndim != 1:
            raise ExportError(f"the outputs of one example have shape {list(order.shape)}; training needs [classes].")
        if not is_whole(order, target.size):  # some elements are unused or used several times
            target = self.in_order(self.program.ops[-1], target, order)
            order = np.arange(target.size)
        lay_out(self.nodes)
        return Graph(self.nodes, self.values, source, target, input_order, order.ravel())

    def new(self, name: str, planes: Planes, **options: object) -> Value:
        value = Value(name, planes, **options)  # type: ignore[arg-type]
        self.values.append(value)
        return value

    def add(self, node: Node) -> Value:
        for source in node.sources:
            source.readers.append(node)
        self.nodes.append(node)
        return node.target

    def make_source(self) -> Value:
        """The input in the layout that its first reader needs: planes for a convolution."""
        name, elements = self.program.source, np.arange(int(np.prod(self.program.shapes[self.program.source])))
        seen = elements.reshape(self.program.shapes[name])
        while (users := self.program.users(name)) and isinstance(users[0], View):
            moved = users[0].move(seen)
            if not is_whole(moved, elements.size):
                break
            seen, name = moved, users[0].output
        value = self.new("input", as_planes(seen.shape), has_gradient=False)
        order = np.empty_like(elements)
        order[seen.ravel()] = elements
        self.seen[self.program.source] = value, order.reshape(self.program.shapes[self.program.source])
        return value

    def resolve(self, op: Op) -> tuple[Value, np.ndarray]:
        value, order = self.seen[op.inputs[0]]
        op.after = [rectifiers.canonical(function) for function in op.after]
        if isinstance(op, View):
            return value, op.move(order)
        if isinstance(op, Dropout):
            return self.dropout(op, value), order
        if isinstance(op, Map):
            return self.map(op)
        if isinstance(op, GroupNorm):
            return self.norm(op, value, order)
        if isinstance(op, Join):
            return self.join(op)
        shape = self.program.shapes[op.output]
        if isinstance(op, Conv):
            made = self.conv(op, self.in_order(op, value, order))
        elif isinstance(op, Linear):
            made = self.linear(op, value, order)
        elif isinstance(op, Pool):
            made = self.pool(op, self.in_order(op, value, order))
        else:
            raise ExportError(f"{op.name} ({type(op).__name__}) has no backward rule.")
        return made, np.arange(made.size).reshape(shape)

    def in_order(self, op: Op, value: Value, order: np.ndarray) -> Value:
        """The value itself if its planes are in the order that the operation needs; otherwise a copy."""
        planes = as_planes(order.shape)
        if planes == value.planes and np.array_equal(order.ravel(), np.arange(value.size)):
            return value
        copy = self.new(f"{op.name}.input", planes, has_gradient=value.has_gradient)
        return self.add(Copy(f"{op.name}.input", [value], copy, order.ravel()))

    def conv(self, op: Conv, source: Value) -> Value:
        height, width = conv_planes(op, source.planes)
        planes = self.new(op.name, (len(op.weight), height, width))
        weights, bias = parameters_in(op.weight), _bias(op)
        options = {"strides": op.strides, "pads": op.pads, "dilations": op.dilations, "groups": op.groups}
        after = op.after
        if op.pool is None or not _is_2x2(op.pool):
            after = rectifiers.fuse(planes, after) if op.pool is None else after
            made = self.add(Affine(op.name, [source], planes, weights, bias, **options))  # type: ignore[arg-type]
            made = self.pool_node(op.pool, made) if op.pool else made
        else:
            target = self.new(op.pool.name, as_planes(self.program.shapes[op.output]))
            after = rectifiers.fuse(target, after, leaky=False)
            made = self.add(Affine(op.name, [source], target, weights, bias, inner=planes, **options))  # type: ignore[arg-type]
        return self.activations(op.name, made, after)

    def linear(self, op: Linear, source: Value, order: np.ndarray) -> Value:
        target = self.new(op.name, (op.weight.shape[1], 1, 1))
        after = rectifiers.fuse(target, op.after)
        weights = parameters_in(op.weight).T[:, :, None, None]
        made = self.add(Affine(op.name, [source], target, weights, _bias(op), order=order.ravel()))
        return self.activations(op.name, made, after)

    def pool(self, op: Pool, source: Value) -> Value:
        return self.activations(op.name, self.pool_node(op, source), op.after)

    def pool_node(self, op: Pool, source: Value) -> Value:
        if any(dilation != 1 for dilation in getattr(op, "dilations", (1, 1))) or op.window[0] * op.window[1] > 255:
            raise ExportError(f"{op.name}: pooling with dilations or windows above 255 pixels has no backward rule.")
        shape = self.program.shapes[op.output]
        planes = (source.planes[0], shape[-2], shape[-1])
        target = self.new(op.name, planes)
        return self.add(Pooling(op.name, [source], target, op.kind, op.window, op.strides, op.pads, op.count_pads))

    def whole(self, op: Op, value: Value, order: np.ndarray) -> tuple[Value, np.ndarray]:
        """The value and its order, or a copy if a view repeats or omits elements."""
        if is_whole(order, value.size):
            return value, order
        return self.in_order(op, value, order), np.arange(order.size).reshape(order.shape)

    def norm(self, op: GroupNorm, value: Value, order: np.ndarray) -> tuple[Value, np.ndarray]:
        value, order = self.whole(op, value, order)
        # Within a group the order of elements does not matter.
        groups = np.repeat(np.arange(op.groups), order.size // op.groups)
        if value.planes[0] % op.groups or not np.array_equal(groups[np.argsort(order.ravel())], groups):
            value = self.in_order(op, value, order)
            order = np.arange(value.size).reshape(order.shape)
        node = Normalization(op.name, [value], self.new(op.name, value.planes), op.groups, op.epsilon)
        made = self.add(node)
        for what, plain in (("scale", 1), ("bias", 0)):
            values = getattr(op, what)
            values = np.repeat(values, order.size // len(values)).reshape(order.shape)
            if not (values == plain).all():
                self.absorb(op, node, what, values, order)
        return self.activations(op.name, made, self.rectified(made, op.after)), order

    def absorb(self, op: Op, node: Node | None, what: str, values: np.ndarray, order: np.ndarray) -> None:
        """Fuses a scale or bias, one parameter per plane, into a normalization."""
        flat = np.empty(order.size, np.int64)
        flat[order.ravel()] = parameters_in(values).ravel()
        index = flat.reshape(node.target.planes[0] if node else 1, -1)
        if (
            not isinstance(node, Normalization)
            or node.target.readers
            or node.target.gate is not None
            or getattr(node, what) is not None
            or (what == "scale" and node.bias is not None)
            or (index != index[:, :1]).any()
            or index.min() < 0
            or len(np.unique(index[:, 0])) < len(index)  # a parameter of several planes would be updated several times
        ):
            raise ExportError(
                f"{op.name}: a trained scale or shift has no backward rule, except one per channel of a norm."
            )
        setattr(node, what, index[:, 0])

    def rectified(self, value: Value, functions: list[Function]) -> list[Function]:
        """Fuses a leading rectifier into the node that computes the value, if possible; returns the other functions."""
        possible = value.gate is None and not value.readers
        return rectifiers.fuse(value, functions) if possible else functions

    def map(self, op: Map) -> tuple[Value, np.ndarray]:
        (value, order), *others = (self.whole(op, *self.seen[name]) for name in op.inputs)
        trained = {"scale": op.scale, "bias": op.shift}
        trained = {what: values for what, values in trained.items() if parameters_in(values).max() >= 0}
        if trained:
            maker = next((node for node in reversed(self.nodes) if node.target is value), None)
            shared = others or self.is_read_elsewhere(op, value)
            for what, values in trained.items():
                self.absorb(op, None if shared else maker, what, values, order)
            if len(trained) == 1:
                plain = (op.shift == 0).all() if "scale" in trained else (op.scale == 1).all()
                if not plain:
                    raise ExportError(f"{op.name}: constants beside parameters have no backward rule.")
            return self.activations(op.name, value, self.rectified(value, op.after)), order
        constants = []
        for values in (op.scale, op.shift):
            constant = np.empty(order.size, np.float32)
            constant[order.ravel()] = values.ravel()
            constants.append(constant[:1] if (constant == constant[0]).all() else constant)
        sources = [value]
        for other, seen in others:
            if other.planes != value.planes or not np.array_equal(seen, order):
                # In the order of the first.
                place = np.empty(order.size, int)
                place[order.ravel()] = seen.ravel()
                copy = self.new(f"{op.name}.input", value.planes, has_gradient=other.has_gradient)
                other = self.add(Copy(f"{op.name}.input", [other], copy, place))
            sources.append(other)
        made = value
        if others or (constants[0] != 1).any() or (constants[1] != 0).any():
            made = self.add(Sum(op.name, sources, self.new(op.name, value.planes), *constants))
            return self.activations(op.name, made, self.rectified(made, op.after)), order
        return self.activations(op.name, made, op.after), order

    def join(self, op: Join) -> tuple[Value, np.ndarray]:
        """Stored channels first if the first input is."""
        seen = [self.seen[name] for name in op.inputs]
        value, order = seen[0]
        shape, axes = op.fill.shape, tuple(range(op.fill.ndim))
        plane = value.planes[1] * value.planes[2]
        if order.ndim == 3 and order.shape[2] > 1 and order[0, 0, 1] - order[0, 0, 0] == plane > 1:
            shape, axes = (shape[2], *shape[:2]), (1, 2, 0)
        place = np.arange(op.fill.size).reshape(shape).transpose(axes)
        flat = place.ravel()
        fill = np.empty(flat.size, np.float32)
        fill[flat] = op.fill.ravel()
        parts = [(flat[places], seen_as.ravel()) for places, (_, seen_as) in zip(op.places, seen, strict=True)]
        target = self.new(op.name, as_planes(shape))
        made = self.add(Concatenation(op.name, [value for value, _ in seen], target, parts, fill))
        return self.activations(op.name, made, op.after), place

    def activations(self, name: str, value: Value, functions: list[Function]) -> Value:
        for function in functions:
            if function[0] not in FUNCTIONS:
                raise ExportError(f"{name}: {function[0]} has no backward rule.")
            target = self.new(f"{name}.{function[0]}", value.planes)
            value = self.add(Activation(f"{name}.{function[0]}", [value], target, function))
        return value

    def dropout(self, op: Dropout, value: Value) -> Value:
        if len(self.program.users(op.inputs[0])) > 1 or value.readers or self.is_read_elsewhere(op, value):
            copy = self.new(f"{op.name}.input", value.planes, has_gradient=value.has_gradient)
            value = self.add(Copy(f"{op.name}.input", [value], copy, np.arange(value.size)))
        self.streams += 1
        return self.add(Drop(op.name, [value], value, op.rate, self.streams))

    def is_read_elsewhere(self, op: Op, value: Value) -> bool:
        """Whether another operation reads the value, directly or through views."""
        names = [name for name, (other, _) in self.seen.items() if other is value]
        others = [user for name in names for user in self.program.users(name) if user is not op]
        return any(user.output not in names for user in others)


def _bias(op: Conv | Linear) -> np.ndarray:
    """The parameters that are an operation's bias; -1 where there is none."""
    index = parameters_in(op.bias)
    if (op.bias[index < 0] != 0).any():
        raise ExportError(f"{op.name}: its bias is not a parameter of the layer.")
    return index


def _is_2x2(pool: Pool) -> bool:
    return pool.kind == "max" and (*pool.window, *pool.strides, *pool.pads) == (2, 2, 2, 2, 0, 0, 0, 0)
