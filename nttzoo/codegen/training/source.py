"""The C source of a training step: shared kernels, one function per node and direction, and a driver."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nttzoo.codegen.training import emit, functions, kernels, memory
from nttzoo.codegen.training.graph import Graph

WIDEST = {16: 14, 8: 10, 4: 10, 1: 4}  # vectors of a tile, by examples in a block: as many as registers hold


@dataclass(frozen=True)
class TrainingSource:
    """C text for a graph and a block size; `arena`: vectors that one thread needs."""

    code: str
    arena: int
    block: int
    inputs: int
    outputs: int


def write(graph: Graph, *, block: int, channels: int) -> tuple[str, memory.Memory]:
    """(the C code except the driver, the layout of the arena)."""
    places = memory.lay_out(graph, block)
    writer = emit.Writer(graph, places, block=block, widest=WIDEST[block])
    nodes = [emit.functions(writer, node) for node in graph.nodes]
    names = [writer.names[node] for node in graph.nodes]
    source = places.activations[graph.source] + graph.source.addresses().ravel()[graph.input_order]
    target = places.activations[graph.target] + graph.target.addresses().ravel()[graph.output_order]
    gradient = places.gradients[graph.target] + graph.target.addresses(gradient=True).ravel()[graph.output_order]
    used = writer.functions
    used |= {needed for name in used for needed in functions.NEEDS.get(name, ())}
    parts = [
        f"#define BLOCK {block}",
        f"#define ARENA {places.size}",
        f"#define INPUTS {len(source)}",
        f"#define CHANNELS {channels}",
        f"#define OUTPUTS {len(target)}",
        kernels.text("vectors.h"),
        kernels.text("math.h"),
        *(text for name, text in functions.FUNCTIONS.items() if name in used),
        *([kernels.text("dropout.h")] if "dropout" in used else []),
        *([kernels.text("root.h")] if "root" in used else []),
        kernels.text("finish.h"),
        kernels.tiles(writer.widths),
        kernels.text("dots.h"),
        kernels.text("pool_2x2.h"),
        kernels.text("structs.h"),
        *writer.tables,
        *nodes,
        _table("input_place", source),
        _table("output_place", target),
        _table("output_gradient", gradient),
        _calls("forward", names),
        _calls("backward", names[::-1]),
        kernels.text("load.h"),
        kernels.text("loss.h"),
        kernels.text("update.h"),
    ]
    return "\n".join(parts), places


def _table(name: str, values: np.ndarray) -> str:
    return f"static const int32_t {name}[{len(values)}] = {{{', '.join(map(str, values.tolist()))}}};"


def _calls(direction: str, names: list[str]) -> str:
    calls = "\n".join(f"    {name}_{direction}(m, net, at);" for name in names)
    return f"static void {direction}(vec *m, const struct net *net, const struct block *at) {{\n{calls}\n}}\n"


def host_source(graph: Graph, *, block: int, channels: int, name: str = "training") -> TrainingSource:
    """The source of a library that trains on this machine, with threads."""
    text, places = write(graph, block=block, channels=channels)
    head = "#include <stdint.h>\n#define RESTRICT restrict\n"
    code = head + text + kernels.text("mix.h") + kernels.text("host.c", name=name)
    return TrainingSource(code, places.size, block, graph.source.size, graph.target.size)
