"""Batches in blocks of examples, so that each weight is read once per block.

A block stores each element of all its examples contiguously. The same steps and tables then serve the whole block: an
address is that of the network for one example, times the number of examples.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from nttzoo.codegen import kernels
from nttzoo.codegen.plan import (
    INPUT,
    DenseLinearStep,
    ElementwiseStep,
    MatmulStep,
    Plan,
    SparseConvStep,
    SparseLinearStep,
    Step,
)
from nttzoo.codegen.tables import from_lowest
from nttzoo.codegen.writer import Lines, Writer

FEWEST = {kernels.LARGEST_BLOCK: 8, 16: 12}  # by block size; a smaller remainder runs one by one
CACHE_BYTES = 512 * 1024
LIMIT_BYTES = 16 * 2**20  # a network whose smallest block needs more runs one example at a time


def possible(plan: Plan, inputs: int) -> bool:
    """Whether all steps support blocks and the smallest block fits."""
    *steps, last = plan.steps
    small = 4 * min(FEWEST) * (plan.arena + inputs) <= LIMIT_BYTES
    known = not any(isinstance(step, MatmulStep) for step in steps) and isinstance(last, ElementwiseStep)
    return bool(steps) and known and small


def size(plan: Plan, inputs: int) -> int:
    """Examples per block: as many as keep its arena in the L2 cache."""
    largest, smallest = FEWEST
    return largest if 4 * largest * (plan.arena + inputs) <= CACHE_BYTES else smallest


class BlockWriter(Writer):
    """Writes steps for `unit` examples."""

    suffix = "_block"

    def __init__(self, plan: Plan, inputs: int):
        super().__init__(plan)
        self.unit = size(plan, inputs)
        self.scale, self.example = f" * {self.unit}L", " + e"
        self.each, self.examples = f"for (e = 0; e < {self.unit}; e++) ", ("int e;",)

    def place(self, buffer: str) -> str:
        return "block" if buffer == INPUT else super().place(buffer)

    def sparse_conv(self, step: SparseConvStep, name: str) -> tuple[Lines, Lines]:
        # One row of all planes at a time, or two if they are pooled, so that the input rows stay in the cache.
        if step.pooling is None or step.pooling.is_2x2:
            step = replace(step, tile=2 if step.pooling else 1)
        return super().sparse_conv(step, name)

    def sparse_linear(self, step: SparseLinearStep, name: str) -> tuple[Lines, Lines]:
        lowest, rows = from_lowest(step.units)
        units, bits = len(rows), self.bits_of(rows)
        before = [
            f"const uint{bits}_t *place = {name}_place;",
            f"const float *weight = {name}_weight;",
            "int unit;",
            *self.skipped(lowest),
        ]
        fetch = [f"const int count = (int){name}_count[unit];"]
        return [], self._linear(step, name, units, bits, before, fetch, ["place += count;", "weight += count;"])

    def dense_linear(self, step: DenseLinearStep, name: str) -> tuple[Lines, Lines]:
        inputs, units = step.weight.shape
        before = [
            f"const uint32_t *place = {name}_place;",
            f"float weight[{inputs}];",
            f"const int count = {inputs};",
            "int unit, k;",
            *self.skipped(int(step.addresses.min())),
        ]
        # The table is contiguous for each input; the kernel reads the weights of one unit.
        fetch = [f"for (k = 0; k < count; k++) weight[k] = {name}_weight[(long)k * {units} + unit];"]
        return [], self._linear(step, name, units, "32", before, fetch, [])

    def _linear(
        self, step: Step, name: str, units: int, bits: str, before: Lines, fetch: Lines, advance: Lines
    ) -> Lines:
        to, unit = f"out + (long)unit * {self.unit}", self.unit
        total = f"sum_planes_{bits}(in, {to}, place, {unit}, weight, count, {name}_bias[unit], {unit});"
        if unit == min(FEWEST):  # one or two vectors: too few for the plane kernel
            total = f"sum_block_{bits}(in, {to}, place, {unit}, weight, count, {name}_bias[unit]);"
        self.kernels.add(f"sum{bits}" if unit > min(FEWEST) else f"sum_block{bits}")
        return [
            *before,
            f"for (unit = 0; unit < {units}; unit++) {{",
            *(f"    {line}" for line in fetch),
            f"    {total}",
            *(f"    {line}" for line in advance),
            "}",
            *self.functions(step.after, "out", units * self.unit),
        ]


def emit(plan: Plan, writer: Writer, inputs: int, outputs: int) -> tuple[Lines, Lines]:
    """(tables and functions, the lines of `run_batch` that process one block at a time)."""
    *steps, last = plan.steps
    assert isinstance(last, ElementwiseStep)
    blocks = BlockWriter(plan, inputs)
    unit = blocks.unit
    written = [blocks.written(step)[1] for step in steps]  # the tables exist already
    texts = [kernels.TEXTS[key] for key in kernels.TEXTS if key in blocks.kernels - writer.kernels]
    writer.uses_math |= blocks.uses_math
    first = [step for step in steps if INPUT in step.reads]
    linear = all(isinstance(step, SparseLinearStep | DenseLinearStep) for step in first)
    tables: Lines = []
    loads, at = inputs, "k"
    if linear:  # they may read only a few inputs
        used = np.unique(np.concatenate([np.zeros(0, int), *map(_places, first)]))
        tables.append(writer.table("block_used", used, "uint32_t"))
        loads, at = len(used), "(long)block_used[k]"
    row = f"({last.runs[0, 0]} + {last.runs[0, 1]}L * k)"
    if linear or len(last.runs) > 1:
        answer = np.concatenate([run[0] + run[1] * np.arange(run[-1]) for run in last.runs])
        tables.append(writer.table("block_answer", answer, "uint32_t"))
        row = "(long)block_answer[k]"
    lines = [
        f"    for (; i + {FEWEST[unit]} <= count; i += {unit}) {{",
        f"        const float *from = input + (long)i * {inputs};",
        f"        float *to = output + (long)i * {outputs}, *block = arena + {plan.arena * unit}L;",
        f"        const int n = count - i < {unit} ? count - i : {unit};",
        "        int k, e;",
        f"        for (k = 0; k < {loads}; k++) {{",
        f"            const long at = {at};",
        f"            for (e = 0; e < n; e++) block[at * {unit} + e] = from[e * {inputs}L + at];",
        f"            for (; e < {unit}; e++) block[at * {unit} + e] = 0.0f;",
        "        }",
        *(f"        {blocks.call(step)};" for step in steps),
        f"        block = {blocks.place(last.reads[0])};",
        f"        for (k = 0; k < {outputs}; k++) {{",
        f"            const float *row = block + {row} * {unit};",
        f"            for (e = 0; e < n; e++) to[e * {outputs}L + k] = row[e];",
        "        }",
        "    }",
    ]
    functions = [*tables, "", *texts, *written]
    return (functions, lines) if linear else (_with_vectors(functions), _with_vectors(lines))


def _with_vectors(lines: Lines) -> Lines:
    """Lines for targets with vector units except WebAssembly, where LeNet-5's module would be a third larger."""
    return ["#if LANES > 1 && !defined(__wasm__)", *lines, "#endif"]


def arena(plan: Plan, inputs: int) -> int:
    """Floats that a block needs: the arena and the inputs of one example, times the number of examples."""
    return (plan.arena + inputs) * size(plan, inputs)


def _places(step: Step) -> np.ndarray:
    """The elements of its input that a linear layer reads."""
    if isinstance(step, DenseLinearStep):
        return step.addresses
    assert isinstance(step, SparseLinearStep)
    return np.concatenate([np.zeros(0, int), *(places for _, places, _ in step.units)])
