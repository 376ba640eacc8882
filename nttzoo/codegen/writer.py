"""A plan's steps as C functions: each kind of step has a method that writes its tables and its loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nttzoo.codegen.functions import BINARY, FUNCTIONS, Function
from nttzoo.codegen.plan import (
    INPUT,
    OUTPUT,
    DenseLinearStep,
    ElementwiseStep,
    FillStep,
    GroupNormStep,
    MatmulStep,
    Plan,
    Pooling,
    PoolStep,
    SoftmaxStep,
    SparseConvStep,
    SparseLinearStep,
    Step,
)
from nttzoo.codegen.source import float_literal, identifier
from nttzoo.codegen.tables import Tables, from_lowest

Lines = list[str]


class Writer(Tables):
    """Collects the kernels that the steps need, and counts the bytes of their tables.

    An element of a buffer is `unit` floats: one, or with blocks (see `blocks`) that of several examples.
    """

    unit = 1
    suffix = ""  # of names of functions and kernels
    scale = example = each = ""  # an address is (element)`scale``example`, `each` loops over examples
    examples: tuple[str, ...] = ()  # declares that loop's index

    def __init__(self, plan: Plan):
        super().__init__()
        self.plan = plan
        self.kernels: set[str] = set()
        self.uses_math = False
        self.names: dict[int, str] = {}
        for index, step in enumerate(plan.steps):
            # The number keeps the names of steps and of their tables apart, whatever the nodes are called.
            self.names[id(step)] = f"step{index}_{identifier(step.name)}"

    def call(self, step: Step) -> str:
        """The call of a step's function in `run`."""
        places = [*step.reads, step.writes, *([step.scratch] if step.scratch else [])]
        return f"{self.names[id(step)]}{self.suffix}({', '.join(map(self.place, places))})"

    def place(self, buffer: str) -> str:
        if buffer in (INPUT, OUTPUT):
            return buffer
        return f"arena + {self.plan.buffers[buffer].offset * self.unit}"

    def step(self, step: Step) -> str:
        """A step's tables and function."""
        tables, function = self.written(step)
        return "\n".join([*tables, function])

    def written(self, step: Step) -> tuple[list[str], str]:
        """(a step's tables, its function)."""
        name = self.names[id(step)]
        writers: dict[type, Callable[..., tuple[list[str], list[str]]]] = {
            SparseConvStep: self.sparse_conv,
            SparseLinearStep: self.sparse_linear,
            DenseLinearStep: self.dense_linear,
            PoolStep: self.pool,
            ElementwiseStep: self.elementwise,
            SoftmaxStep: self.softmax,
            GroupNormStep: self.group_norm,
            FillStep: self.fill,
            MatmulStep: self.matmul,
        }
        tables, lines = writers[type(step)](step, name)
        arguments = [f"const float *RESTRICT in{i or ''}" for i in range(len(step.reads))] + ["float *RESTRICT out"]
        if step.scratch:
            arguments.append("float *RESTRICT plane")
        text = "\n".join(f"    {line}" for line in lines)
        return tables, "\n".join([f"static void {name}{self.suffix}({', '.join(arguments)}) {{", text, "}\n"])

    def times(self, count: str) -> str:
        """A number of elements as a number of floats."""
        return count if self.unit == 1 else f"({count}) * {self.unit}"

    def skipped(self, elements: int) -> list[str]:
        """The line that moves `in` to the element from which addresses are counted."""
        return [f"in += {self.times(str(elements))};"] if elements else []

    # Steps: (tables, lines of the function).

    def sparse_conv(self, step: SparseConvStep, name: str) -> tuple[list[str], list[str]]:
        first = step.planes[0][1] if len(step.planes) > 1 else None
        alike = first is not None and all(np.array_equal(first, places) for _, places, _ in step.planes)
        tables, bits = self.weighted(name, step.planes, alike)
        self.kernels.add(f"sum{bits}")
        (height, width), row, unit = step.size, step.row * self.unit, self.unit
        place, target, finish = f"y * {row}", "to", self.functions(step.after, "to", "n")
        if step.pooling:
            out = step.pooling.out
            place, target = (f"y / 2 * {out[1] * unit}" if step.tile < height else "0"), "plane"
            rows, count = ("rows / 2", f"rows / 2 * {out[1]}") if step.tile < height else (out[0], out[0] * out[1])
            finish = [
                self.pooling(step.pooling, "plane", "to", rows),
                *self.functions(step.after, "to", self.times(str(count))),
            ]
        count = f"(rows - 1) * {step.row} + {width}"
        lines = [
            "int y, p;",
            f"for (y = 0; y < {height}; y += {step.tile}) {{",
            f"    const int rows = {height} - y < {step.tile} ? {height} - y : {step.tile};",
            f"    const int n = {self.times(count)};",
            f"    const uint{bits}_t *place = {name}_place;",
            f"    const float *weight = {name}_weight;",
            f"    for (p = 0; p < {len(step.planes)}; p++) {{",
            f"        float *to = out + (long)p * {step.stride * unit} + {place};",
            f"        const int count = (int){name}_count[p];",
            f"        sum_planes_{bits}(in + y * {row}, {target}, place, {unit}, weight, count, {name}_bias[p], n);",
            *(f"        {line}" for line in finish),
            *([] if alike else ["        place += count;"]),
            "        weight += count;",
            "    }",
            "}",
        ]
        return tables, lines

    def sparse_linear(self, step: SparseLinearStep, name: str) -> tuple[list[str], list[str]]:
        lowest, rows = from_lowest(step.units)
        tables, bits = self.weighted(name, rows)
        self.kernels.add(f"dot{bits}")
        lines = [
            f"const uint{bits}_t *place = {name}_place;",
            f"const float *weight = {name}_weight;",
            "int unit;",
            *self.skipped(lowest),
            f"for (unit = 0; unit < {len(step.units)}; unit++) {{",
            f"    int count = (int){name}_count[unit];",
            f"    out[unit] = dot_{bits}(in, place, weight, count, {name}_bias[unit]);",
            "    place += count;",
            "    weight += count;",
            "}",
        ]
        return tables, [*lines, *self.functions(step.after, "out", len(step.units))]

    def dense_linear(self, step: DenseLinearStep, name: str) -> tuple[list[str], list[str]]:
        inputs, outputs = step.weight.shape
        lowest = int(step.addresses.min())
        tables = [
            self.table(f"{name}_place", step.addresses - lowest, "uint32_t"),
            self.table(f"{name}_weight", step.weight.ravel(), "float"),
            self.table(f"{name}_bias", step.bias, "float"),
        ]
        lines = [
            "int k, m;",
            *self.skipped(lowest),
            f"for (m = 0; m < {outputs}; m++) out[m] = {name}_bias[m];",
            f"for (k = 0; k < {inputs}; k++) {{",
            f"    const float x = in[{name}_place[k]];",
            f"    const float *RESTRICT weight = {name}_weight + (long)k * {outputs};",
            f"    for (m = 0; m < {outputs}; m++) out[m] += x * weight[m];",
            "}",
        ]
        return tables, [*lines, *self.functions(step.after, "out", outputs)]

    def pool(self, step: PoolStep, name: str) -> tuple[list[str], list[str]]:
        stride = step.pooling.out[0] * step.pooling.out[1] * self.unit
        start = f"in + {name}_start[p]{self.scale}"
        lines = [
            "int p;",
            f"for (p = 0; p < {len(step.starts)}; p++) {{",
            f"    float *to = out + (long)p * {stride};",
            f"    {self.pooling(step.pooling, start, 'to', step.pooling.out[0])}",
            *(f"    {line}" for line in self.functions(step.after, "to", stride)),
            "}",
        ]
        return [self.table(f"{name}_start", step.starts, "uint32_t")], lines

    def pooling(self, pooling: Pooling, source: str, target: str, rows: object) -> str:
        """The call that pools a plane, or the part of it that gives `rows` rows."""
        if pooling.is_2x2:
            kernel, numbers = "max_pool_2x2", [source, pooling.row, target, rows, pooling.out[1]]
        else:
            sizes = [*pooling.size, pooling.row, *pooling.out, *pooling.window, *pooling.strides, *pooling.pads]
            counted = [int(pooling.count_pads)] if pooling.kind == "average" else []
            kernel, numbers = f"{pooling.kind}_pool", [source, target, *sizes, *counted]
        return self.kernel_call(kernel, numbers)

    def kernel_call(self, kernel: str, arguments: list[Any]) -> str:
        """The call of a kernel that has a variant for an example and one for a block."""
        self.kernels.add(kernel + self.suffix)
        unit = [self.unit] if self.suffix else []
        return f"{kernel}{self.suffix}({', '.join(map(str, [*arguments, *unit]))});"

    def elementwise(self, step: ElementwiseStep, name: str) -> tuple[list[str], list[str]]:
        two = len(step.reads) == 2
        columns = step.runs.shape[1]
        tables = [self.table(f"{name}_run", step.runs.ravel(), "int32_t")]
        a, b, to = (
            f"{array}[i * run[{k}]{self.scale}{self.example}]" for array, k in (("a", 1), ("b", 3), ("to", columns - 2))
        )
        value = BINARY[step.kind].format(a, b) if two else a
        self.uses_math |= two and step.kind == "pow"
        if step.scale is not None or step.shift is not None:
            scale = np.ones(int(step.runs[:, -1].sum())) if step.scale is None else step.scale
            shift = np.zeros(int(step.runs[:, -1].sum())) if step.shift is None else step.shift
            tables += [self.table(f"{name}_scale", scale, "float"), self.table(f"{name}_shift", shift, "float")]
            value = f"({value}) * {name}_scale[at + i] + {name}_shift[at + i]"
        counted = step.scale is not None or step.shift is not None
        lines = [f"int r, i{', at = 0' if counted else ''};", *self.examples]
        if step.zeroed:
            lines.append(f"for (i = 0; i < {self.plan.buffers[step.writes].size * self.unit}; i++) out[i] = 0.0f;")
        lines += [
            f"for (r = 0; r < {len(step.runs)}; r++) {{",
            f"    const int32_t *run = {name}_run + {columns} * r;",
            f"    const float *a = in + run[0]{self.scale};",
            *([f"    const float *b = in1 + run[2]{self.scale};"] if two else []),
            f"    float *to = out + run[{columns - 3}]{self.scale};",
            f"    for (i = 0; i < run[{columns - 1}]; i++) {self.each}{to} = {value};",
            *([f"    at += run[{columns - 1}];"] if counted else []),
            "}",
        ]
        return tables, [*lines, *self.functions(step.after, "out", int(step.runs[:, -1].sum()) * self.unit)]

    def softmax(self, step: SoftmaxStep, name: str) -> tuple[list[str], list[str]]:
        self.uses_math = True
        a, to = f"from[i * run[1]{self.scale}]", f"to[i * run[3]{self.scale}]"
        finish = f"for (i = 0; i < run[4]; i++) {to} /= total;"
        if step.log:
            finish = f"for (i = 0; i < run[4]; i++) {to} = {a} - top - logf(total);"
        lines = [
            "int r, i;",
            *self.examples,
            f"{self.each}for (r = 0; r < {len(step.runs)}; r++) {{",
            f"    const int32_t *run = {name}_run + 5 * r;",
            f"    const float *from = in + run[0]{self.scale}{self.example};",
            f"    float *to = out + run[2]{self.scale}{self.example};",
            "    float top = from[0], total = 0.0f;",
            f"    for (i = 1; i < run[4]; i++) top = {a} > top ? {a} : top;",
            "    for (i = 0; i < run[4]; i++) {",
            f"        {to} = expf({a} - top);",
            f"        total += {to};",
            "    }",
            f"    {finish}",
            "}",
        ]
        return [self.table(f"{name}_run", step.runs.ravel(), "int32_t")], lines

    def fill(self, step: FillStep, name: str) -> tuple[list[str], list[str]]:
        tables = [
            self.table(f"{name}_place", step.places, "uint32_t"),
            self.table(f"{name}_value", step.values, "float"),
        ]
        to = f"out[{name}_place[i]{self.scale}{self.example}]"
        loop = f"for (i = 0; i < {len(step.places)}; i++) {self.each}{to} = {name}_value[i];"
        lines = ["int i;", *self.examples, loop]
        return tables, lines

    def matmul(self, step: MatmulStep, name: str) -> tuple[list[str], list[str]]:
        m, k, n = step.m, step.k, step.n
        lines = [
            "int b, i, j, l;",
            f"for (b = 0; b < {step.count}; b++) {{",
            f"    for (i = 0; i < {m}; i++) {{",
            f"        const float *left = in + (b * {m}L + i) * {k};",
            f"        float *RESTRICT to = out + (b * {m}L + i) * {n};",
            f"        for (j = 0; j < {n}; j++) to[j] = 0.0f;",
            f"        for (l = 0; l < {k}; l++) {{",
            f"            const float *right = in1 + (b * {k}L + l) * {n};",
            f"            for (j = 0; j < {n}; j++) to[j] += left[l] * right[j];",
            "        }",
            "    }",
            "}",
        ]
        return [], [*lines, *self.functions(step.after, "out", step.count * m * n)]

    def group_norm(self, step: GroupNormStep, name: str) -> tuple[list[str], list[str]]:
        self.uses_math = True
        channels = len(step.scale) // step.groups
        tables = [self.table(f"{name}_scale", step.scale, "float"), self.table(f"{name}_bias", step.bias, "float")]
        parameters = [f"{name}_scale + g * {channels}", f"{name}_bias + g * {channels}", float_literal(step.epsilon)]
        lines = [
            "int g;",
            f"for (g = 0; g < {step.groups}; g++) {{",
            f"    const long at = g * {channels * step.size * self.unit}L;",
            f"    {self.kernel_call('group_norm', ['in + at', 'out + at', channels, step.size, *parameters])}",
            "}",
        ]
        return tables, [*lines, *self.functions(step.after, "out", len(step.scale) * step.size * self.unit)]

    def functions(self, after: list[Function], target: str, length: object) -> list[str]:
        """The calls that apply elementwise functions."""
        lines = []
        for kind, *bounds in after:
            self.kernels.add(kind)
            self.uses_math |= FUNCTIONS[kind].uses_math
            limits = "".join(f", {float_literal(bound)}" for bound in bounds)
            lines.append(f"apply_{kind}({target}, {length}{limits});")
        return lines
