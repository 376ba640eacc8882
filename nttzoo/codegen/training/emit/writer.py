"""Shared by the emitters of all nodes: addresses of values, loops over them, and which node applies a rectifier."""

from __future__ import annotations

from itertools import pairwise

from nttzoo.codegen.source import float_literal, identifier
from nttzoo.codegen.training.graph import Affine, Drop, Graph, Node, Normalization, Value
from nttzoo.codegen.training.memory import Memory

Lines = list[str]


class Writer:
    """Writes addresses and loops, and collects the kernels that the functions need."""

    def __init__(self, graph: Graph, memory: Memory, *, block: int, widest: int):
        self.graph = graph
        self.memory = memory
        self.block = block
        self.widest = widest  # tile, in vectors
        self.widths: set[int] = set()
        self.functions: set[str] = set()
        self.layers = [node for node in graph.nodes if isinstance(node, Affine)]
        self.norms = [node for node in graph.nodes if isinstance(node, Normalization)]
        self.names = {node: f"n{i}_{identifier(node.name)}" for i, node in enumerate(graph.nodes)}
        self.tables: Lines = []

    def function(self, node: Node, what: str, lines: Lines) -> str:
        body = "\n".join(f"    {line}" for line in lines)
        unused = "    (void)m, (void)net, (void)at;\n"
        name = f"{self.names[node]}_{what}"
        return f"NOINLINE void {name}(vec *m, const struct net *net, const struct block *at) {{\n{unused}{body}\n}}\n"

    def activation_at(self, value: Value) -> str:
        """The address of a value's first element."""
        return f"m + {self.memory.activations[value] + int(value.addresses()[0, 0, 0])}"

    def gradient_at(self, value: Value) -> str:
        return f"m + {self.memory.gradients[value] + int(value.addresses(gradient=True)[0, 0, 0])}"

    def tile_row(self, width: int) -> list[tuple[int, int]]:
        """(start, width) of tiles that cover a row, as equal as possible."""
        count = -(-width // self.widest)
        edges = [width * i // count for i in range(count + 1)]
        tiles = [(begin, end - begin) for begin, end in pairwise(edges)]
        self.widths |= {size for _, size in tiles}
        return tiles

    def first_writer(self, node: Node, source: Value) -> bool:
        """Whether this node is the first in the backward pass to write the source's gradient; others add to it."""
        readers = [reader for reader in source.readers if not isinstance(reader, Drop)]
        return readers[-1] is node if source is not self.graph.target else False

    def gates(self, node: Node, source: Value) -> bool:
        """Whether this node applies the source's rectifier to the gradient that it writes."""
        readers = [reader for reader in source.readers if not isinstance(reader, Drop)]
        fused = any(isinstance(other, Affine) and other.inner and other.target is source for other in self.graph.nodes)
        return isinstance(node, Affine) and source.gate is not None and readers == [node] and not fused

    def gated_here(self, node: Node) -> bool:
        """Whether a node must apply its own rectifier to its gradient first, since its readers did not."""
        target = node.target
        readers = [reader for reader in target.readers if not isinstance(reader, Drop)]
        return target.gate is not None and not (len(readers) == 1 and self.gates(readers[0], target))

    def gate_gradient(self, value: Value) -> Lines:
        """Applies a value's rectifier to its gradient, in place."""
        slope = float_literal(value.gate)
        return self.over(
            value,
            [("g", value, True), ("a", value, False)],
            [f"g[x] = finish(g[x], GATE, {slope}, a + x);"],
        )

    def over(self, shape: Value, rows: list[tuple[str, Value, bool]], body: Lines, sums: str = "") -> Lines:
        """A loop over the elements of a value; `rows`: (name of a pointer, value, whether its gradient is meant).

        `sums`: variables that the body adds to; each row is summed by itself first, which rounds less.
        """
        channels, height, width = shape.planes
        pointers = []
        for name, value, gradient in rows:
            tall, wide = value.rows(gradient=gradient)
            start = self.gradient_at(value) if gradient else self.activation_at(value)
            pointers.append(f"        vec *{name} = {start} + ((long)c * {tall} + y) * {wide};")
        return [
            "int c, y, x;",
            f"for (c = 0; c < {channels}; c++) {{",
            f"    for (y = 0; y < {height}; y++) {{",
            *pointers,
            *(f"        vec row_{name} = ZERO;" for name in sums),
            f"        for (x = 0; x < {width}; x++) {{",
            *(f"            {line}" for line in body),
            "        }",
            *(f"        {name} += row_{name};" for name in sums),
            "    }",
            "}",
        ]

    def own_gate(self, node: Node) -> tuple[str, Lines]:
        """(the value `v` after the node's rectifier, lines that propagate the gradient through it)."""
        if node.target.gate is None:
            return "v", []
        back = ["{", *self.gate_gradient(node.target), "}"] if self.gated_here(node) else []
        return f"finish(v, RECTIFY, {float_literal(node.target.gate)}, m)", back
