"""Batches of a network of linear layers: many examples side by side, so that each weight is read once for all of them.

Element k of BLOCK examples is treated like a plane of a convolution: the same kernel adds up weighted planes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from nttzoo.codegen.plan import INPUT, DenseLinearStep, ElementwiseStep, Plan, SparseLinearStep, Step

if TYPE_CHECKING:
    from nttzoo.codegen.writer import Writer

BLOCK = 64
FEWEST = 8  # a smaller rest is done one by one


def possible(plan: Plan) -> bool:
    """Whether all steps but the last, which hands out the answer, are linear layers."""
    *linear, last = plan.steps
    return (
        bool(linear)
        and all(isinstance(step, SparseLinearStep | DenseLinearStep) for step in linear)
        and isinstance(last, ElementwiseStep)
    )


def arena(plan: Plan, inputs: int) -> int:
    """Floats for a block: the arena of one example, and its inputs, BLOCK times."""
    return (plan.arena + inputs) * BLOCK


def emit(plan: Plan, writer: Writer, inputs: int, outputs: int) -> tuple[list[str], list[str]]:
    """(tables and functions, the lines of `run_batch` that take BLOCK examples at a time)."""
    *linear, last = plan.steps
    assert isinstance(last, ElementwiseStep)
    used = np.unique(np.concatenate([_places(step) for step in linear if INPUT in step.reads]))
    answer = np.concatenate([run[0] + run[1] * np.arange(run[-1]) for run in last.runs])
    functions = [
        *(_layer(step, writer) for step in linear),
        writer.table("block_used", used, "uint32_t"),
        writer.table("block_answer", answer, "uint32_t"),
        "",
    ]

    def place(buffer: str) -> str:
        return "block" if buffer == INPUT else f"arena + {plan.buffers[buffer].offset * BLOCK}L"

    calls = [
        f"        {writer.names[id(step)]}_block({place(step.reads[0])}, {place(step.writes)});" for step in linear
    ]
    lines = [
        f"    for (; i + {FEWEST} <= count; i += {BLOCK}) {{",
        f"        const float *from = input + (long)i * {inputs};",
        f"        float *to = output + (long)i * {outputs}, *block = arena + {plan.arena * BLOCK}L;",
        f"        const int n = count - i < {BLOCK} ? count - i : {BLOCK};",
        "        int k, e;",
        f"        for (k = 0; k < {len(used)}; k++) {{",
        "            const long at = (long)block_used[k];",
        f"            for (e = 0; e < n; e++) block[at * {BLOCK} + e] = from[e * {inputs}L + at];",
        f"            for (; e < {BLOCK}; e++) block[at * {BLOCK} + e] = 0.0f;",
        "        }",
        *calls,
        f"        block = {place(last.reads[0])};",
        f"        for (k = 0; k < {outputs}; k++) {{",
        f"            const float *row = block + (long)block_answer[k] * {BLOCK};",
        f"            for (e = 0; e < n; e++) to[e * {outputs}L + k] = row[e];",
        "        }",
        "    }",
    ]
    return functions, lines


def _places(step: Step) -> np.ndarray:
    """The elements of its input that a linear layer reads."""
    if isinstance(step, DenseLinearStep):
        return step.addresses
    assert isinstance(step, SparseLinearStep)
    return np.concatenate([np.zeros(0, int), *(places for _, places, _ in step.units)])


def _layer(step: Step, writer: Writer) -> str:
    """A layer for BLOCK examples, with the tables of the layer for one."""
    name = writer.names[id(step)]
    if isinstance(step, DenseLinearStep):
        (inputs, units), bits = step.weight.shape, "32"
        # The table has an input's weights side by side, the kernel wants a unit's.
        before = [f"    float weight[{inputs}];", f"    const int count = {inputs};", "    int unit, k;"]
        fetch = [f"for (k = 0; k < count; k++) weight[k] = {name}_weight[(long)k * {units} + unit];"]
        place, advance = f"{name}_place", []
    else:
        assert isinstance(step, SparseLinearStep)
        units, bits = len(step.units), writer.bits_of(step.units)
        before = [
            f"    const uint{bits}_t *place = {name}_place;",
            f"    const float *weight = {name}_weight;",
            "    int unit;",
        ]
        fetch = [f"const int count = (int){name}_count[unit];"]
        place, advance = "place", ["place += count;", "weight += count;"]
    writer.kernels.add(f"sum{bits}")
    lines = [
        f"static void {name}_block(const float *RESTRICT in, float *RESTRICT out) {{",
        *before,
        f"    for (unit = 0; unit < {units}; unit++) {{",
        *(f"        {line}" for line in fetch),
        f"        float *to = out + (long)unit * {BLOCK};",
        f"        sum_planes_{bits}(in, to, {place}, {BLOCK}, weight, count, {name}_bias[unit], {BLOCK});",
        *(f"        {line}" for line in advance),
        "    }",
        *(f"    {line}" for line in writer.functions(step.after, "out", units * BLOCK)),
        "}\n",
    ]
    return "\n".join(lines)
