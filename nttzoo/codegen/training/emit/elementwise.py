"""Elementwise operations in C."""

from __future__ import annotations

import numpy as np

from nttzoo.codegen.source import float_literal
from nttzoo.codegen.training.emit.writer import Lines, Writer
from nttzoo.codegen.training.graph import Activation, Drop, Node, Sum, Value


def activation(writer: Writer, node: Activation) -> tuple[Lines, Lines]:
    """An elementwise function."""
    (source,), target = node.sources, node.target
    name, *numbers = node.function
    writer.functions.add(str(name))
    given = "".join(f", {float_literal(number)}" for number in numbers)
    forward = writer.over(target, [("a", source, False), ("b", target, False)], [f"b[x] = f_{name}(a[x]{given});"])
    if not source.has_gradient:
        return forward, []
    sign = "=" if writer.first_writer(node, source) else "+="
    rows = [("a", source, False), ("h", target, True), ("g", source, True)]
    return forward, writer.over(target, rows, [f"g[x] {sign} h[x] * d_{name}(a[x]{given});"])


def drop(writer: Writer, node: Drop) -> tuple[Lines, Lines]:
    """Dropout, in place; backward draws the same numbers again."""
    value = node.target
    writer.functions.add("dropout")
    _, height, width = value.planes
    threshold = round(node.rate * 2**24)
    scale = 1 / (1 - node.rate) if node.rate < 1 else 0.0
    keep = f"kept(at->lanes, key, (uint32_t)((c * {height} + y) * {width} + x), {threshold}u, {float_literal(scale)})"
    before = ["if (!at->train) return;", "{", f"const uint32_t key = at->key + {node.stream} * 0x632be5abu;"]
    forward = [*before, *writer.over(value, [("a", value, False)], [f"a[x] = a[x] * {keep};"]), "}"]
    if not value.has_gradient:
        return forward, []
    return forward, [*before, *writer.over(value, [("g", value, True)], [f"g[x] = g[x] * {keep};"]), "}"]


def sum(writer: Writer, node: Sum) -> tuple[Lines, Lines]:
    """A scaled sum of values."""
    rows = [(f"a{i}", source, False) for i, source in enumerate(node.sources)]
    total = " + ".join(f"a{i}[x]" for i in range(len(rows)))
    scale, shift = _constant(writer, node, "scale", node.scale), _constant(writer, node, "shift", node.shift)
    scaled = len(node.scale) > 1 or node.scale[0] != 1
    value = f"({total}) * {scale}" if scaled else total
    if len(node.shift) > 1 or node.shift[0] != 0:
        value += f" + {shift}"
    stored, backward = writer.own_gate(node)
    forward = writer.over(
        node.target, [*rows, ("b", node.target, False)], [f"const vec v = {value};", f"b[x] = {stored};"]
    )
    written: list[Value] = []
    for source in node.sources:
        if not source.has_gradient:
            continue
        sign = "=" if writer.first_writer(node, source) and source not in written else "+="
        written.append(source)
        body = [f"g[x] {sign} h[x]{f' * {scale}' if scaled else ''};"]
        backward += ["{", *writer.over(node.target, [("h", node.target, True), ("g", source, True)], body), "}"]
    return forward, backward


def _constant(writer: Writer, node: Node, what: str, values: np.ndarray) -> str:
    """One number, or a table with an entry for each element x of row (c, y)."""
    if len(values) == 1:
        return float_literal(values[0])
    name = f"{writer.names[node]}_{what}"
    writer.tables.append(f"static const float {name}[{len(values)}] = {{{', '.join(map(float_literal, values))}}};")
    return f"{name}[(c * {node.target.planes[1]} + y) * {node.target.planes[2]} + x]"
