"""A plan's steps as C functions: each kind of step has a method that writes its tables and its loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from nttzoo.codegen.functions import FUNCTIONS, Function
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
from nttzoo.codegen.tables import Tables

_COMBINED = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "max": "({0} > {1} ? {0} : {1})",
    "min": "({0} < {1} ? {0} : {1})",
    "pow": "powf({0}, {1})",
}


class Writer(Tables):
    """Collects the kernels that the steps need, and counts the bytes of their tables."""

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
        return f"{self.names[id(step)]}({', '.join(map(self.place, places))})"

    def place(self, buffer: str) -> str:
        if buffer in (INPUT, OUTPUT):
            return buffer
        return f"arena + {self.plan.buffers[buffer].offset}"

    def step(self, step: Step) -> str:
        """A step's tables and function."""
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
        return "\n".join([*tables, f"static void {name}({', '.join(arguments)}) {{", text, "}\n"])

    # Steps: (tables, lines of the function).

    def sparse_conv(self, step: SparseConvStep, name: str) -> tuple[list[str], list[str]]:
        first = step.planes[0][1] if len(step.planes) > 1 else None
        alike = first is not None and all(np.array_equal(first, places) for _, places, _ in step.planes)
        tables, bits = self.weighted(name, step.planes, alike)
        self.kernels.add(f"sum{bits}")
        (height, width), row = step.size, step.row
        place, target, finish = f"y * {row}", "to", self.functions(step.after, "to", "n")
        if step.pooling:
            out = step.pooling.out
            place, target = (f"y / 2 * {out[1]}" if step.tile < height else "0"), "plane"
            rows, count = ("rows / 2", f"rows / 2 * {out[1]}") if step.tile < height else (out[0], out[0] * out[1])
            finish = [self.pooling(step.pooling, "plane", "to", rows), *self.functions(step.after, "to", count)]
        lines = [
            "int y, p;",
            f"for (y = 0; y < {height}; y += {step.tile}) {{",
            f"    const int rows = {height} - y < {step.tile} ? {height} - y : {step.tile};",
            f"    const int n = (rows - 1) * {row} + {width};",
            f"    const uint{bits}_t *place = {name}_place;",
            f"    const float *weight = {name}_weight;",
            f"    for (p = 0; p < {len(step.planes)}; p++) {{",
            f"        float *to = out + (long)p * {step.stride} + {place};",
            f"        const int count = (int){name}_count[p];",
            f"        sum_planes_{bits}(in + y * {row}, {target}, place, 1, weight, count, {name}_bias[p], n);",
            *(f"        {line}" for line in finish),
            *([] if alike else ["        place += count;"]),
            "        weight += count;",
            "    }",
            "}",
        ]
        return tables, lines

    def sparse_linear(self, step: SparseLinearStep, name: str) -> tuple[list[str], list[str]]:
        tables, bits = self.weighted(name, step.units)
        self.kernels.add(f"dot{bits}")
        lines = [
            f"const uint{bits}_t *place = {name}_place;",
            f"const float *weight = {name}_weight;",
            "int unit;",
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
        tables = [
            self.table(f"{name}_place", step.addresses, "uint32_t"),
            self.table(f"{name}_weight", step.weight.ravel(), "float"),
            self.table(f"{name}_bias", step.bias, "float"),
        ]
        lines = [
            "int k, m;",
            f"for (m = 0; m < {outputs}; m++) out[m] = {name}_bias[m];",
            f"for (k = 0; k < {inputs}; k++) {{",
            f"    const float x = in[{name}_place[k]];",
            f"    const float *RESTRICT weight = {name}_weight + (long)k * {outputs};",
            f"    for (m = 0; m < {outputs}; m++) out[m] += x * weight[m];",
            "}",
        ]
        return tables, [*lines, *self.functions(step.after, "out", outputs)]

    def pool(self, step: PoolStep, name: str) -> tuple[list[str], list[str]]:
        stride = step.pooling.out[0] * step.pooling.out[1]
        lines = [
            "int p;",
            f"for (p = 0; p < {len(step.starts)}; p++) {{",
            f"    float *to = out + (long)p * {stride};",
            f"    {self.pooling(step.pooling, f'in + {name}_start[p]', 'to', step.pooling.out[0])}",
            *(f"    {line}" for line in self.functions(step.after, "to", stride)),
            "}",
        ]
        return [self.table(f"{name}_start", step.starts, "uint32_t")], lines

    def pooling(self, pooling: Pooling, source: str, target: str, rows: object) -> str:
        """The call that pools a plane, or as much of it as gives `rows` rows."""
        if pooling.is_2x2:
            self.kernels.add("max_pool_2x2")
            return f"max_pool_2x2({source}, {pooling.row}, {target}, {rows}, {pooling.out[1]});"
        numbers = [*pooling.size, pooling.row, *pooling.out, *pooling.window, *pooling.strides, *pooling.pads]
        self.kernels.add(f"{pooling.kind}_pool")
        if pooling.kind == "average":
            numbers.append(int(pooling.count_pads))
        return f"{pooling.kind}_pool({source}, {target}, {', '.join(map(str, numbers))});"

    def elementwise(self, step: ElementwiseStep, name: str) -> tuple[list[str], list[str]]:
        two = len(step.reads) == 2
        columns = step.runs.shape[1]
        tables = [self.table(f"{name}_run", step.runs.ravel(), "int32_t")]
        value = _COMBINED[step.kind].format("a[i * run[1]]", "b[i * run[3]]") if two else "a[i * run[1]]"
        self.uses_math |= two and step.kind == "pow"
        if step.scale is not None or step.shift is not None:
            scale = np.ones(int(step.runs[:, -1].sum())) if step.scale is None else step.scale
            shift = np.zeros(int(step.runs[:, -1].sum())) if step.shift is None else step.shift
            tables += [self.table(f"{name}_scale", scale, "float"), self.table(f"{name}_shift", shift, "float")]
            value = f"({value}) * {name}_scale[at + i] + {name}_shift[at + i]"
        counted = step.scale is not None or step.shift is not None
        lines = [f"int r, i{', at = 0' if counted else ''};"]
        if step.zeroed:
            lines.append(f"for (i = 0; i < {self.plan.buffers[step.writes].size}; i++) out[i] = 0.0f;")
        lines += [
            f"for (r = 0; r < {len(step.runs)}; r++) {{",
            f"    const int32_t *run = {name}_run + {columns} * r;",
            "    const float *a = in + run[0];",
            *(["    const float *b = in1 + run[2];"] if two else []),
            f"    float *to = out + run[{columns - 3}];",
            f"    for (i = 0; i < run[{columns - 1}]; i++) to[i * run[{columns - 2}]] = {value};",
            *([f"    at += run[{columns - 1}];"] if counted else []),
            "}",
        ]
        return tables, [*lines, *self.functions(step.after, "out", int(step.runs[:, -1].sum()))]

    def softmax(self, step: SoftmaxStep, name: str) -> tuple[list[str], list[str]]:
        self.uses_math = True
        finish = "for (i = 0; i < run[4]; i++) to[i * run[3]] /= total;"
        if step.log:
            finish = "for (i = 0; i < run[4]; i++) to[i * run[3]] = from[i * run[1]] - top - logf(total);"
        lines = [
            "int r, i;",
            f"for (r = 0; r < {len(step.runs)}; r++) {{",
            f"    const int32_t *run = {name}_run + 5 * r;",
            "    const float *from = in + run[0];",
            "    float *to = out + run[2];",
            "    float top = from[0], total = 0.0f;",
            "    for (i = 1; i < run[4]; i++) top = from[i * run[1]] > top ? from[i * run[1]] : top;",
            "    for (i = 0; i < run[4]; i++) {",
            "        to[i * run[3]] = expf(from[i * run[1]] - top);",
            "        total += to[i * run[3]];",
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
        lines = ["int i;", f"for (i = 0; i < {len(step.places)}; i++) out[{name}_place[i]] = {name}_value[i];"]
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
        self.kernels.add("group_norm")
        channels = len(step.scale) // step.groups
        tables = [self.table(f"{name}_scale", step.scale, "float"), self.table(f"{name}_bias", step.bias, "float")]
        about = f"{channels}, {step.size}, {name}_scale + g * {channels}, {name}_bias + g * {channels}"
        lines = [
            "int g;",
            f"for (g = 0; g < {step.groups}; g++) {{",
            f"    const long at = g * {channels * step.size}L;",
            f"    group_norm(in + at, out + at, {about}, {float_literal(step.epsilon)});",
            "}",
        ]
        return tables, [*lines, *self.functions(step.after, "out", len(step.scale) * step.size)]

    def functions(self, after: list[Function], target: str, length: object) -> list[str]:
        """The calls that apply elementwise functions."""
        lines = []
        for kind, *bounds in after:
            self.kernels.add(kind)
            self.uses_math |= FUNCTIONS[kind].uses_math
            limits = "".join(f", {float_literal(bound)}" for bound in bounds)
            lines.append(f"apply_{kind}({target}, {length}{limits});")
        return lines
