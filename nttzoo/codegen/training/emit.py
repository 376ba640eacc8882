"""From a graph to C: one forward and one backward function per node, on an arena of vectors.

`m` is the arena, `net` the run-time tables and weights, `at` the block of examples: its dropout key, its gradient, and
the partial sums of its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from nttzoo.codegen.source import float_literal, identifier
from nttzoo.codegen.training.graph import (
    Activation,
    Affine,
    Copy,
    Drop,
    Graph,
    Node,
    Normalization,
    Pooling,
    Sum,
    Value,
)
from nttzoo.codegen.training.memory import Memory

BAND_BYTES = 384 * 1024  # of rows that stay in a second-level cache while all weights of a layer pass over them
Lines = list[str]


class Emitter:
    """Writes the functions of all nodes; knows which shared kernels they need."""

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

    def node(self, node: Node) -> str:
        """A node's functions."""
        writers: dict[type, Callable[..., tuple[Lines, Lines]]] = {
            Affine: self.affine,
            Pooling: self.pooling,
            Activation: self.activation,
            Drop: self.drop,
            Sum: self.sum,
            Normalization: self.normalization,
            Copy: self.copy,
        }
        forward, backward = writers[type(node)](node)
        return "\n".join([self.function(node, "forward", forward), self.function(node, "backward", backward)])

    def function(self, node: Node, what: str, lines: Lines) -> str:
        body = "\n".join(f"    {line}" for line in lines)
        unused = "    (void)m, (void)net, (void)at;\n"
        name = f"{self.names[node]}_{what}"
        return f"NOINLINE void {name}(vec *m, const struct net *net, const struct block *at) {{\n{unused}{body}\n}}\n"

    # Places.

    def activation_at(self, value: Value) -> str:
        """Where a value's first element lies."""
        return f"m + {self.memory.activations[value] + int(value.addresses()[0, 0, 0])}"

    def gradient_at(self, value: Value) -> str:
        return f"m + {self.memory.gradients[value] + int(value.addresses(gradient=True)[0, 0, 0])}"

    def tile_row(self, width: int) -> list[tuple[int, int]]:
        """(start, width) of tiles that cover a row, as even as possible."""
        count = -(-width // self.widest)
        edges = [width * i // count for i in range(count + 1)]
        tiles = [(begin, end - begin) for begin, end in pairwise(edges)]
        self.widths |= {size for _, size in tiles}
        return tiles

    def first_writer(self, node: Node, source: Value) -> bool:
        """Whether, on the way back, this node is the first to write the source's gradient: others add to it."""
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

    def over(self, shape: Value, rows: list[tuple[str, Value, bool]], body: Lines) -> Lines:
        """A loop over the elements of a value; `rows`: (name of a pointer, value, whether its gradient is meant)."""
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
            f"        for (x = 0; x < {width}; x++) {{",
            *(f"            {line}" for line in body),
            "        }",
            "    }",
            "}",
        ]

    # Affine layers.

    def affine(self, node: Affine) -> tuple[Lines, Lines]:
        layer = self.layers.index(node)
        lists = [
            f"const int32_t *row = net->lists[{4 * layer}], *place = net->lists[{4 * layer + 1}];",
            f"const float *weight = net->theta + net->starts[{2 * layer}];",
        ]
        has_bias = bool((node.bias >= 0).any())
        if has_bias:
            lists.append(f"const float *bias = net->theta + net->starts[{2 * layer + 1}];")
        forward = [*lists, *(self.pooled_forward(node) if node.inner else self.plain_forward(node))]
        backward: Lines = []
        if node.inner:
            backward += self.unpool(node)
        elif self.gated_here(node):
            backward += ["{", *self.gate_gradient(node.target), "}"]
        backward += ["{", *self.weight_gradients(node, layer, has_bias), "}"]
        if node.sources[0].has_gradient:
            backward += ["{", *self.source_gradient(node, layer), "}"]
        return forward, backward

    def plain_forward(self, node: Affine) -> Lines:
        channels, height, width = node.target.planes
        tall, wide = node.target.rows()
        gate = node.target.gate
        mode, slope = ("PLAIN", "0.0f") if gate is None else ("RECTIFY", float_literal(gate))
        return [
            "int y, o;",
            f"for (y = 0; y < {height}; y++) {{",
            f"    const vec *in = {self.input_of(node)} + (long)y * {self.row_step(node)};",
            f"    for (o = 0; o < {channels}; o++) {{",
            f"        vec *out = {self.activation_at(node.target)} + ((long)o * {tall} + y) * {wide};",
            *self.row_tiles(node, "in", "out", width, mode, slope, indent=8),
            "    }",
            "}",
        ]

    def pooled_forward(self, node: Affine) -> Lines:
        assert node.inner is not None
        width = node.inner.planes[2]
        channels, height, out_width = node.target.planes
        tall, wide = node.target.rows()
        return [
            f"vec *rows = m + {self.memory.rows[node]};",
            f"bvec *choice = (bvec *)(m + {self.memory.kept[node]});",
            "int y, o;",
            f"for (y = 0; y < {height}; y++) {{",
            f"    const vec *in = {self.input_of(node)} + (long)y * {2 * self.row_step(node)};",
            f"    for (o = 0; o < {channels}; o++) {{",
            f"        vec *out = {self.activation_at(node.target)} + ((long)o * {tall} + y) * {wide};",
            *self.row_tiles(node, "in", "rows", width, "PLAIN", "0.0f", indent=8),
            *self.row_tiles(node, f"in + {self.row_step(node)}", f"rows + {width}", width, "PLAIN", "0.0f", indent=8),
            f"        pool_rows(rows, rows + {width}, {out_width}, out, "
            f"choice + ((long)o * {height} + y) * {out_width}, {int(node.target.gate is not None)});",
            "    }",
            "}",
        ]

    def input_of(self, node: Affine) -> str:
        """Where the places of the weights count from: the source's memory, borders included."""
        return f"m + {self.memory.activations[node.sources[0]]}"

    def row_step(self, node: Affine) -> int:
        """Elements of the source from one output row to the next."""
        return node.strides[0] * node.sources[0].rows()[1]

    def row_tiles(
        self, node: Affine, source: str, target: str, width: int, mode: str, slope: str, indent: int
    ) -> Lines:
        start = "bias[o]" if (node.bias >= 0).any() else "0.0f"
        step = node.strides[1]
        return [
            f"{' ' * indent}tile_{size}({source} + {begin * step}, {step}, {target} + {begin}, 1, place + row[o], "
            f"weight + row[o], row[o + 1] - row[o], {start}, {mode}, {slope}, m);"
            for begin, size in self.tile_row(width)
        ]

    def unpool(self, node: Affine) -> Lines:
        assert node.inner is not None
        channels, height, width = node.target.planes
        _, inner_height, inner_width = node.inner.planes
        tall, wide = node.target.rows(gradient=True)
        deep, long = node.inner.rows(gradient=True)
        lines = [
            "{",
            f"const bvec *choice = (const bvec *)(m + {self.memory.kept[node]});",
            "int o, y;",
            f"for (o = 0; o < {channels}; o++) {{",
            f"    vec *to = {self.gradient_at(node.inner)} + (long)o * {deep * long};",
            f"    for (y = 0; y < {height}; y++) {{",
            f"        const vec *g = {self.gradient_at(node.target)} + ((long)o * {tall} + y) * {wide};",
            f"        unpool_rows(g, choice + ((long)o * {height} + y) * {width}, {width}, to + y * {2 * long}, "
            f"to + y * {2 * long} + {long});",
            "    }",
        ]
        if inner_width % 2:  # the last row and column are in no window
            last = inner_width - 1
            lines.append(f"    for (y = 0; y < {inner_height}; y++) to[y * {long} + {last}] = ZERO;")
        if inner_height % 2:
            lines.append(f"    for (y = 0; y < {inner_width}; y++) to[{(inner_height - 1) * long} + y] = ZERO;")
        return [*lines, "}", "}"]

    def weight_gradients(self, node: Affine, layer: int, has_bias: bool) -> Lines:
        planes = node.planes
        channels, height, width = planes.planes
        tall, wide = planes.rows(gradient=True)
        lists = [
            f"const int32_t *row = net->lists[{4 * layer}], *place = net->lists[{4 * layer + 1}];",
            f"float *weight = at->gradient + net->starts[{2 * layer}];",
        ]
        bias = [f"float *bias = at->gradient + net->starts[{2 * layer + 1}];"] if has_bias else []
        if height == width == 1:
            return [
                *lists,
                *bias,
                f"const vec *in = {self.input_of(node)}, *g = {self.gradient_at(planes)};",
                "int o, k;",
                f"for (o = 0; o < {channels}; o++) {{",
                f"    const vec h = g[(long)o * {tall * wide}];",
                *(["    bias[o] += total(h);"] if has_bias else []),
                "    for (k = row[o]; k < row[o + 1]; k++) weight[k] += total(in[place[k]] * h);",
                "}",
            ]
        source = node.sources[0]
        bytes_of_row = 4 * self.block * (source.planes[0] * node.strides[0] * source.rows()[1] + channels * wide)
        band = max(1, min(height, BAND_BYTES // bytes_of_row))
        step, in_row = node.strides[1], self.row_step(node)
        return [
            *lists,
            *bias,
            "vec *sum = at->partial;",
            *([f"vec *sums = at->partial + row[{channels}];"] if has_bias else []),
            "int y, o, k;",
            f"for (k = 0; k < row[{channels}] + {channels}; k++) sum[k] = ZERO;",
            f"for (y = 0; y < {height}; y += {band}) {{",
            f"    const int rows = {height} - y < {band} ? {height} - y : {band};",
            f"    const vec *in = {self.input_of(node)} + (long)y * {in_row};",
            f"    for (o = 0; o < {channels}; o++) {{",
            f"        const vec *g = {self.gradient_at(planes)} + ((long)o * {tall} + y) * {wide};",
            *([f"        sums[o] += sum_rows(g, {wide}, rows, {width});"] if has_bias else []),
            "        for (k = row[o]; k + 3 < row[o + 1]; k += 4) {",
            f"            dot_rows_4(in, place + k, {in_row}, {step}, g, {wide}, rows, {width}, sum + k);",
            "        }",
            "        for (; k < row[o + 1]; k++) {",
            f"            sum[k] += dot_rows(in + place[k], {in_row}, {step}, g, {wide}, rows, {width});",
            "        }",
            "    }",
            "}",
            f"for (k = 0; k < row[{channels}]; k++) weight[k] += total(sum[k]);",
            *([f"for (o = 0; o < {channels}; o++) bias[o] += total(sums[o]);"] if has_bias else []),
        ]

    def source_gradient(self, node: Affine, layer: int) -> Lines:
        """The transposed layer; with strides, each phase of the source's pixels has lists of its own."""
        source, planes = node.sources[0], node.planes
        gates = self.gates(node, source)
        mode = "GATE" if gates else "PLAIN"
        if not self.first_writer(node, source):
            mode = "ADD"
        slope = float_literal(source.gate) if gates else "0.0f"
        lines = [
            f"const int32_t *row = net->lists[{4 * layer + 2}], *place = net->lists[{4 * layer + 3}];",
            f"const float *weight = net->back + net->back_starts[{layer}];",
            "int q, c;",
        ]
        lists = source.planes[0]
        (sy, sx), (top, left, _, _) = node.strides, node.pads
        if node.order is not None:  # a linear layer: each element of the source has its list
            channels, height, width = source.planes
            tall, wide = source.rows(gradient=True)
            deep, long = source.rows()
            self.widths.add(1)
            return [
                *lines,
                "int y, x, i = 0;",
                "(void)q;",
                f"for (c = 0; c < {channels}; c++) for (y = 0; y < {height}; y++)",
                f"for (x = 0; x < {width}; x++, i++) {{",
                f"    vec *to = {self.gradient_at(source)} + ((long)c * {tall} + y) * {wide} + x;",
                f"    const vec *gate = {self.activation_at(source)} + ((long)c * {deep} + y) * {long} + x;",
                f"    tile_1({self.gradient_at(planes)}, 1, to, 1, place + row[i], weight + row[i], "
                f"row[i + 1] - row[i], 0.0f, {mode}, {slope}, gate);",
                "}",
            ]
        tall, wide = source.rows(gradient=True)
        deep, long = source.rows()
        grad_row = planes.rows(gradient=True)[1]
        for fy in range(sy):
            for fx in range(sx):
                first_y, count_y = _phase(fy, sy, top, source.planes[1])
                first_x, count_x = _phase(fx, sx, left, source.planes[2])
                if not count_y or not count_x:
                    continue
                y, x = first_y * sy + fy - top, first_x * sx + fx - left
                base = f"m + {self.memory.gradients[planes]} + (long)(q + {first_y}) * {grad_row} + {first_x}"
                to = f"{self.gradient_at(source)} + ((long)c * {tall} + q * {sy} + {y}) * {wide} + {x}"
                gate = f"{self.activation_at(source)} + ((long)c * {deep} + q * {sy} + {y}) * {long} + {x}"
                lines += [
                    f"for (q = 0; q < {count_y}; q++) {{",
                    f"    const vec *in = {base};",
                    f"    for (c = 0; c < {lists}; c++) {{",
                    f"        const int32_t *r = row + {(fy * sx + fx) * lists} + c;",
                    f"        vec *to = {to};",
                    f"        const vec *gate = {gate};",
                    *(
                        f"        tile_{size}(in + {begin}, 1, to + {begin * sx}, {sx}, place + r[0], weight + r[0], "
                        f"r[1] - r[0], 0.0f, {mode}, {slope}, gate + {begin * sx});"
                        for begin, size in self.tile_row(count_x)
                    ),
                    "    }",
                    "}",
                ]
        return lines

    # Everything else.

    def pooling(self, node: Pooling) -> tuple[Lines, Lines]:
        source, target = node.sources[0], node.target
        channels, height, width = target.planes
        tall, wide = source.rows()
        (kh, kw), (sy, sx), (top, left, _, _) = node.window, node.strides, node.pads
        is_max = node.kind == "max"
        kept = [f"bvec *choice = (bvec *)(m + {self.memory.kept[node]});"] if is_max else []
        window = [
            f"const int y0 = y * {sy} - {top}, x0 = x * {sx} - {left};",
            f"const int yb = y0 < 0 ? 0 : y0, ye = y0 + {kh} > {source.planes[1]} ? {source.planes[1]} : y0 + {kh};",
            f"const int xb = x0 < 0 ? 0 : x0, xe = x0 + {kw} > {source.planes[2]} ? {source.planes[2]} : x0 + {kw};",
        ]
        share = f"1.0f / {float_literal(kh * kw)}" if node.count_pads else "1.0f / (float)((ye - yb) * (xe - xb))"
        if is_max:
            take = [
                f"vec top = in[yb * {wide} + xb];",
                f"ivec at = ISPLAT((yb - y0) * {kw} + xb - x0);",
                "for (i = yb; i < ye; i++) for (j = xb; j < xe; j++) {",
                f"    const vec v = in[i * {wide} + j];",
                "    const ivec above = v > top;",
                f"    top = CHOOSE(above, v, top), at = ICHOOSE(above, ISPLAT((i - y0) * {kw} + j - x0), at);",
                "}",
                f"out[y * {target.rows()[1]} + x] = top;",
                f"choice[((long)c * {height} + y) * {width} + x] = BYTES(at);",
            ]
        else:
            take = [
                "vec sum = ZERO;",
                f"for (i = yb; i < ye; i++) for (j = xb; j < xe; j++) sum += in[i * {wide} + j];",
                f"out[y * {target.rows()[1]} + x] = sum * ({share});",
            ]
        loops = f"for (y = 0; y < {height}; y++) for (x = 0; x < {width}; x++) {{"
        forward = [
            *kept,
            "int c, y, x, i, j;",
            f"for (c = 0; c < {channels}; c++) {{",
            f"    const vec *in = {self.activation_at(source)} + (long)c * {tall * wide};",
            f"    vec *out = {self.activation_at(target)} + (long)c * {target.rows()[0] * target.rows()[1]};",
            f"    {loops}",
            *(f"        {line}" for line in [*window, *take]),
            "    }",
            "}",
        ]
        if not source.has_gradient:
            return forward, []
        deep, long = source.rows(gradient=True)
        high, far = target.rows(gradient=True)
        if is_max:
            give = [
                f"const ivec at = WORDS(choice[((long)c * {height} + y) * {width} + x]);",
                f"const vec h = g[y * {far} + x];",
                "for (i = yb; i < ye; i++) for (j = xb; j < xe; j++) {",
                f"    to[i * {long} + j] += KEEP(at == (i - y0) * {kw} + j - x0, h);",
                "}",
            ]
        else:
            give = [
                f"const vec h = g[y * {far} + x] * ({share});",
                f"for (i = yb; i < ye; i++) for (j = xb; j < xe; j++) to[i * {long} + j] += h;",
            ]
        rows, columns = source.planes[1:]
        zero = f"for (i = 0; i < {rows}; i++) for (j = 0; j < {columns}; j++) to[i * {long} + j] = ZERO;"
        backward = [
            *kept,
            "int c, y, x, i, j;",
            f"for (c = 0; c < {channels}; c++) {{",
            f"    vec *to = {self.gradient_at(source)} + (long)c * {deep * long};",
            f"    const vec *g = {self.gradient_at(target)} + (long)c * {high * far};",
            *([f"    {zero}"] if self.first_writer(node, source) else []),
            f"    {loops}",
            *(f"        {line}" for line in [*window, *give]),
            "    }",
            "}",
        ]
        return forward, backward

    def activation(self, node: Activation) -> tuple[Lines, Lines]:
        (source,), target = node.sources, node.target
        name, *numbers = node.function
        self.functions.add(str(name))
        given = "".join(f", {float_literal(number)}" for number in numbers)
        forward = self.over(target, [("a", source, False), ("b", target, False)], [f"b[x] = f_{name}(a[x]{given});"])
        if not source.has_gradient:
            return forward, []
        sign = "=" if self.first_writer(node, source) else "+="
        rows = [("a", source, False), ("h", target, True), ("g", source, True)]
        return forward, self.over(target, rows, [f"g[x] {sign} h[x] * d_{name}(a[x]{given});"])

    def drop(self, node: Drop) -> tuple[Lines, Lines]:
        value = node.target
        self.functions.add("dropout")
        _, height, width = value.planes
        threshold = round(node.rate * 2**24)
        keep = (
            f"kept(at->lanes, key, (uint32_t)((c * {height} + y) * {width} + x), {threshold}u, "
            f"{float_literal(1 / (1 - node.rate))})"
        )
        before = ["if (!at->train) return;", "{", f"const uint32_t key = at->key + {node.stream} * 0x632be5abu;"]
        forward = [*before, *self.over(value, [("a", value, False)], [f"a[x] = a[x] * {keep};"]), "}"]
        if not value.has_gradient:
            return forward, []
        return forward, [*before, *self.over(value, [("g", value, True)], [f"g[x] = g[x] * {keep};"]), "}"]

    def constant(self, node: Node, what: str, values: np.ndarray) -> str:
        """One number, or a table with an entry for each element x of row (c, y)."""
        if len(values) == 1:
            return float_literal(values[0])
        name = f"{self.names[node]}_{what}"
        self.tables.append(f"static const float {name}[{len(values)}] = {{{', '.join(map(float_literal, values))}}};")
        return f"{name}[(c * {node.target.planes[1]} + y) * {node.target.planes[2]} + x]"

    def own_gate(self, node: Node) -> tuple[str, Lines]:
        """(the value `v` as the node's rectifier leaves it, lines that take the gradient back through it)."""
        if node.target.gate is None:
            return "v", []
        back = ["{", *self.gate_gradient(node.target), "}"] if self.gated_here(node) else []
        return f"finish(v, RECTIFY, {float_literal(node.target.gate)}, m)", back

    def sum(self, node: Sum) -> tuple[Lines, Lines]:
        rows = [(f"a{i}", source, False) for i, source in enumerate(node.sources)]
        total = " + ".join(f"a{i}[x]" for i in range(len(rows)))
        scale, shift = self.constant(node, "scale", node.scale), self.constant(node, "shift", node.shift)
        scaled = len(node.scale) > 1 or node.scale[0] != 1
        value = f"({total}) * {scale}" if scaled else total
        if len(node.shift) > 1 or node.shift[0] != 0:
            value += f" + {shift}"
        stored, backward = self.own_gate(node)
        forward = self.over(
            node.target, [*rows, ("b", node.target, False)], [f"const vec v = {value};", f"b[x] = {stored};"]
        )
        written: list[Value] = []
        for source in node.sources:
            if not source.has_gradient:
                continue
            sign = "=" if self.first_writer(node, source) and source not in written else "+="
            written.append(source)
            body = [f"g[x] {sign} h[x]{f' * {scale}' if scaled else ''};"]
            backward += ["{", *self.over(node.target, [("h", node.target, True), ("g", source, True)], body), "}"]
        return forward, backward

    def normalization(self, node: Normalization) -> tuple[Lines, Lines]:
        source, target = node.sources[0], node.target
        index = self.norms.index(node)
        channels = target.planes[0] // node.groups
        count = channels * target.planes[1] * target.planes[2]
        has_scale, has_bias = node.scale is not None, node.bias is not None
        scale = [f"const float *scale = net->theta + net->norm_starts[{2 * index}];"] if has_scale else []
        shift = [f"const float *shift = net->theta + net->norm_starts[{2 * index + 1}];"] if has_bias else []
        kept = [f"vec *mean = m + {self.memory.kept[node]}, *factor = mean + {node.groups};", "int group;"]
        scaled = " * scale[c]" if has_scale else ""

        def of_group(rows: list[tuple[str, Value, bool]], body: Lines) -> Lines:
            lines = self.over(target, rows, body)
            lines[1] = f"for (c = group * {channels}; c < (group + 1) * {channels}; c++) {{"
            return ["{", *lines, "}"]

        a, b = ("a", source, False), ("b", target, False)
        h, g = ("h", target, True), ("g", source, True)
        stored, backward = self.own_gate(node)
        value = f"const vec v = (a[x] - s) * factor[group]{scaled}{' + shift[c]' if has_bias else ''};"
        forward = [
            *scale,
            *shift,
            *kept,
            f"for (group = 0; group < {node.groups}; group++) {{",
            "    vec s = ZERO, q = ZERO;",
            *of_group([a], ["s += a[x];"]),
            f"    s = s / {float_literal(count)};",
            *of_group([a], ["const vec d = a[x] - s;", "q += d * d;"]),
            f"    q = q / {float_literal(count)} + {float_literal(node.epsilon)};",
            "    mean[group] = s, factor[group] = inverse_root(q);",
            *of_group([a, b], [value, f"b[x] = {stored};"]),
            "}",
        ]
        self.functions.add("root")
        sign = "=" if self.first_writer(node, source) else "+="
        gradients = []
        if has_scale:
            gradients.append(f"float *d_scale = at->gradient + net->norm_starts[{2 * index}];")
        if has_bias:
            gradients.append(f"float *d_shift = at->gradient + net->norm_starts[{2 * index + 1}];")
        centered = "const vec d = (a[x] - mean[group]) * factor[group];"
        sums = of_group([a, h], [centered, "p += h[x], r += h[x] * d;"])
        # Sums over each channel, which also make those over the group.
        sums[2] = f"{sums[2]} vec p = ZERO, r = ZERO;"
        shares = [f"s += p{scaled}, q += r{scaled};"]
        shares += ["d_shift[c] += total(p);"] if has_bias else []
        shares += ["d_scale[c] += total(r);"] if has_scale else []
        sums[-2] = f"{' '.join(shares)} }}"
        backward += [
            *scale,
            *kept,
            *gradients,
            f"for (group = 0; group < {node.groups}; group++) {{",
            "    vec s = ZERO, q = ZERO;",
            *sums,
        ]
        if source.has_gradient:
            backward += [
                f"    s = s / {float_literal(count)}, q = q / {float_literal(count)};",
                *of_group(
                    [a, h, g],
                    [
                        centered,
                        f"g[x] {sign} (h[x]{scaled} - s - d * q) * factor[group];",
                    ],
                ),
            ]
        return forward, [*backward, "}"]

    def copy(self, node: Copy) -> tuple[Lines, Lines]:
        source, target = node.sources[0], node.target
        name = f"{self.names[node]}_order"
        tables = {
            "a": source.addresses().ravel()[node.order],
            "g": source.addresses(gradient=True).ravel()[node.order],
        }
        for key, table in tables.items():
            values = ", ".join(map(str, table.tolist()))
            self.tables.append(f"static const int32_t {name}_{key}[{len(table)}] = {{{values}}};")
        at = f"{name}_@[(c * {target.planes[1]} + y) * {target.planes[2]} + x]"
        forward = self.over(
            target,
            [("b", target, False)],
            [f"b[x] = (m + {self.memory.activations[source]})[{at.replace('@', 'a')}];"],
        )
        if not source.has_gradient:
            return forward, []
        start = f"m + {self.memory.gradients[source]}"
        zero = self.over(source, [("g", source, True)], ["g[x] = ZERO;"]) if self.first_writer(node, source) else []
        give = self.over(target, [("h", target, True)], [f"({start})[{at.replace('@', 'g')}] += h[x];"])
        return forward, [*(["{", *zero, "}"] if zero else []), "{", *give, "}"]


def _phase(phase: int, stride: int, low: int, size: int) -> tuple[int, int]:
    """(first, count) of the rows q for which row q * stride + phase - low of the source exists."""
    first = -(-(low - phase) // stride) if low > phase else 0
    last = (low + size - 1 - phase) // stride
    return first, max(last - first + 1, 0)
