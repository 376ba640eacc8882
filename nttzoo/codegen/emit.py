"""From a plan to C99: tables of surviving weights, a few kernels that walk them, and one function per step."""

from __future__ import annotations

from nttzoo.codegen import blocks, kernels
from nttzoo.codegen.choices import Choices
from nttzoo.codegen.plan import (
    DenseLinearStep,
    Plan,
    SparseConvStep,
    SparseLinearStep,
)
from nttzoo.codegen.source import Metadata, Source, header, identifier, metadata_tables
from nttzoo.codegen.writer import Writer


def emit(plan: Plan, name: str, inputs: int, outputs: int, about: Metadata, choices: Choices) -> Source:
    """The C source of a plan; `about` may hold mean, std, classes and the input's shape."""
    name = identifier(name)
    writer = Writer(plan)
    steps = [writer.step(step) for step in plan.steps]
    calls = [f"    {writer.call(step)};" for step in plan.steps]
    blocked = choices.block and blocks.possible(plan, inputs)
    batch_arena = blocks.arena(plan, inputs) if blocked else plan.arena
    block_functions, block_lines = blocks.emit(plan, writer, inputs, outputs) if blocked else ([], [])
    body = [
        f'#include "{name}.h"',
        kernels.PREAMBLE.replace("@MATH@", "#include <math.h>\n" if writer.uses_math else ""),
        *(kernels.TEXTS[key] for key in kernels.TEXTS if key in writer.kernels),
        *steps,
        *block_functions,
        *metadata_tables(name, about),
        f"void {name}_run(const float *input, float *output, float *arena) {{",
        *(["    (void)arena;"] if not plan.arena else []),
        *calls,
        "}\n",
        f"void {name}_run_batch(const float *input, float *output, int count, float *arena) {{",
        "    int i = 0;",
        *block_lines,
        "    for (; i < count; i++) {",
        f"        {name}_run(input + (long)i * {inputs}, output + (long)i * {outputs}, arena);",
        "    }",
        "}",
    ]
    head = header(name, plan.arena, batch_arena, inputs, outputs, about)
    code = "\n".join(body) + "\n"
    return Source(name, head, code, plan.arena, batch_arena, inputs, outputs, writer.table_bytes, _work(plan))


def _work(plan: Plan) -> int:
    """Multiply-adds of one example."""
    work = 0
    for step in plan.steps:
        if isinstance(step, SparseConvStep):
            work += step.size[0] * step.row * sum(len(places) for _, places, _ in step.planes)
        elif isinstance(step, SparseLinearStep):
            work += sum(len(places) for _, places, _ in step.units)
        elif isinstance(step, DenseLinearStep):
            work += step.weight.size
    return work
