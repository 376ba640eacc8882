"""Copies and concatenations in C."""

from __future__ import annotations

import numpy as np

from nttzoo.codegen.source import float_literal
from nttzoo.codegen.training.emit.writer import Lines, Writer
from nttzoo.codegen.training.graph import Concatenation, Copy, Value


def copy(writer: Writer, node: Copy) -> tuple[Lines, Lines]:
    """Copies elements in another order."""
    source, target = node.sources[0], node.target
    name = f"{writer.names[node]}_order"
    tables = {
        "a": source.addresses().ravel()[node.order],
        "g": source.addresses(gradient=True).ravel()[node.order],
    }
    for key, table in tables.items():
        values = ", ".join(map(str, table.tolist()))
        writer.tables.append(f"static const int32_t {name}_{key}[{len(table)}] = {{{values}}};")
    at = f"{name}_@[(c * {target.planes[1]} + y) * {target.planes[2]} + x]"
    forward = writer.over(
        target,
        [("b", target, False)],
        [f"b[x] = (m + {writer.memory.activations[source]})[{at.replace('@', 'a')}];"],
    )
    if not source.has_gradient:
        return forward, []
    start = f"m + {writer.memory.gradients[source]}"
    zero = writer.over(source, [("g", source, True)], ["g[x] = ZERO;"]) if writer.first_writer(node, source) else []
    give = writer.over(target, [("h", target, True)], [f"({start})[{at.replace('@', 'g')}] += h[x];"])
    return forward, [*(["{", *zero, "}"] if zero else []), "{", *give, "}"]


def concatenation(writer: Writer, node: Concatenation) -> tuple[Lines, Lines]:
    """Concatenates values and constants."""
    target, name = node.target, writer.names[node]
    forward: Lines = []
    backward: Lines = []
    is_constant = np.ones(target.size, bool)
    written: list[Value] = []
    for i, (source, (places, order)) in enumerate(zip(node.sources, node.parts, strict=True)):
        is_constant[places] = False
        values = f"(m + {writer.memory.activations[target]})[@to] = (m + {writer.memory.activations[source]})[@from];"
        tables = target.addresses().ravel()[places], source.addresses().ravel()[order]
        forward += _along(writer, f"{name}_{i}", tables, values)
        if not source.has_gradient:
            continue
        if writer.first_writer(node, source) and source not in written:
            backward += ["{", *writer.over(source, [("g", source, True)], ["g[x] = ZERO;"]), "}"]
        written.append(source)
        gradients = f"(m + {writer.memory.gradients[source]})[@from] += (m + {writer.memory.gradients[target]})[@to];"
        tables = (
            target.addresses(gradient=True).ravel()[places],
            source.addresses(gradient=True).ravel()[order],
        )
        backward += _along(writer, f"{name}_{i}_back", tables, gradients)
    constants = np.flatnonzero(is_constant)
    for i, number in enumerate(np.unique(node.fill[constants])):
        places = target.addresses().ravel()[constants[node.fill[constants] == number]]
        fill = f"(m + {writer.memory.activations[target]})[@to] = splat({float_literal(number)});"
        forward += _along(writer, f"{name}_fill_{i}", (places, None), fill)
    return forward, backward


def _along(writer: Writer, name: str, tables: tuple[np.ndarray, np.ndarray | None], body: str) -> Lines:
    """A loop over pairs of addresses, @to and @from."""
    for what, table in zip(("to", "from"), tables, strict=True):
        if table is not None:
            values = ", ".join(map(str, table.tolist()))
            writer.tables.append(f"static const int32_t {name}_{what}[{len(table)}] = {{{values}}};")
            body = body.replace(f"@{what}", f"{name}_{what}[k]")
    assert tables[0] is not None
    return ["{", "int k;", f"for (k = 0; k < {len(tables[0])}; k++) {body}", "}"]
