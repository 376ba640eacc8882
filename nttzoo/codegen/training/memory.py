"""The arena of a training step: offsets of its buffers, shared by buffers with disjoint lifetimes."""

from __future__ import annotations

from dataclasses import dataclass, field

from nttzoo.codegen.plan import Buffer, place
from nttzoo.codegen.training.graph import Activation, Affine, Graph, Node, Normalization, Pooling, Value


@dataclass
class Memory:
    """Offsets into the arena, in vectors: activations, gradients, and what nodes store for the backward pass."""

    size: int = 0
    activations: dict[Value, int] = field(default_factory=dict)
    gradients: dict[Value, int] = field(default_factory=dict)
    kept: dict[Node, int] = field(default_factory=dict)  # choices of pooling, statistics of normalization
    rows: dict[Node, int] = field(default_factory=dict)  # rows of planes that are pooled immediately


def lay_out(graph: Graph, block: int) -> Memory:
    """Assigns offsets to all buffers of a training step for `block` examples."""
    end = 2 * len(graph.nodes) + 1
    forward = {node: index for index, node in enumerate(graph.nodes)}
    backward = {node: end - index for index, node in enumerate(graph.nodes)}
    makers: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        makers.setdefault(node.target, []).append(node)
    memory = Memory()
    buffers: list[tuple[dict, object, Buffer]] = []

    def add(table: dict, key: object, size: int, first: int, last: int, *, lasting: bool = False) -> None:
        # Borders of zeros must stay zeros: their memory is not shared.
        first, last = (-1, end + 1) if lasting else (first, last)
        buffers.append((table, key, Buffer(size, first, last)))

    for value in graph.values:
        made = [forward[node] for node in makers.get(value, [])]
        uses = [forward[node] for node in value.readers]
        uses += [backward[node] for node in value.readers if isinstance(node, Affine | Normalization | Activation)]
        uses += [backward[node] for node in makers.get(value, []) if value.gate is not None]
        if not _is_inner(graph, value):
            loss = [len(graph.nodes)] if value is graph.target else []
            first, last = min(made, default=-1), max([*made, *uses, *loss, 0])
            add(memory.activations, value, value.memory(), first, last, lasting=any(value.pads))
        if value.has_gradient:
            writers = [backward[node] for node in value.readers] or [len(graph.nodes)]
            last = max([backward[node] for node in makers.get(value, [])], default=end)
            if value is graph.target:
                writers.append(len(graph.nodes))
            if _is_inner(graph, value):
                maker = next(node for node in graph.nodes if isinstance(node, Affine) and node.inner is value)
                writers, last = [backward[maker]], backward[maker]
            size = value.memory(gradient=True)
            add(memory.gradients, value, size, min(writers), last, lasting=any(value.gradient_pads))
    for node in graph.nodes:
        if isinstance(node, Affine) and node.inner is not None:
            width = node.inner.planes[2]
            add(memory.rows, node, 2 * width, forward[node], forward[node])
        if (isinstance(node, Affine) and node.inner is not None) or (isinstance(node, Pooling) and node.kind == "max"):
            add(memory.kept, node, -(-node.target.size // 4), forward[node], backward[node])  # bytes
        elif isinstance(node, Normalization):
            add(memory.kept, node, 2 * node.groups, forward[node], backward[node])
    memory.size = place([buffer for _, _, buffer in buffers])
    for table, key, buffer in buffers:
        table[key] = buffer.offset
    return memory


def _is_inner(graph: Graph, value: Value) -> bool:
    """Whether a value is never stored as a whole: planes that are pooled as they are computed."""
    return any(isinstance(node, Affine) and node.inner is value for node in graph.nodes)
