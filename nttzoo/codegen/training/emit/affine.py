"""Affine layers in C: weighted inputs forward; gradients of weights and of inputs backward."""

from __future__ import annotations

from nttzoo.codegen.source import float_literal
from nttzoo.codegen.training.emit.writer import Lines, Writer
from nttzoo.codegen.training.graph import Affine

BAND_BYTES = 384 * 1024  # rows that stay in the L2 cache while all weights of a layer are applied to them


def affine(writer: Writer, node: Affine) -> tuple[Lines, Lines]:
    """A convolution or a linear layer."""
    layer = writer.layers.index(node)
    lists = [
        f"const int32_t *row = net->lists[{4 * layer}], *place = net->lists[{4 * layer + 1}];",
        f"const float *weight = net->theta + net->starts[{2 * layer}];",
    ]
    has_bias = bool((node.bias >= 0).any())
    if has_bias:
        lists.append(f"const float *bias = net->theta + net->starts[{2 * layer + 1}];")
    forward = [*lists, *(_pooled_forward(writer, node) if node.inner else _plain_forward(writer, node))]
    backward: Lines = []
    if node.inner:
        backward += _unpool(writer, node)
    elif writer.gated_here(node):
        backward += ["{", *writer.gate_gradient(node.target), "}"]
    backward += ["{", *_weight_gradients(writer, node, layer, has_bias), "}"]
    if node.sources[0].has_gradient:
        backward += ["{", *_source_gradient(writer, node, layer), "}"]
    return forward, backward


def _plain_forward(writer: Writer, node: Affine) -> Lines:
    channels, height, width = node.target.planes
    tall, wide = node.target.rows()
    gate = node.target.gate
    mode, slope = ("PLAIN", "0.0f") if gate is None else ("RECTIFY", float_literal(gate))
    return [
        "int y, o;",
        f"for (y = 0; y < {height}; y++) {{",
        f"    const vec *in = {_input_of(writer, node)} + (long)y * {_row_step(node)};",
        f"    for (o = 0; o < {channels}; o++) {{",
        f"        vec *out = {writer.activation_at(node.target)} + ((long)o * {tall} + y) * {wide};",
        *_row_tiles(writer, node, "in", "out", width, mode, slope, indent=8),
        "    }",
        "}",
    ]


def _pooled_forward(writer: Writer, node: Affine) -> Lines:
    assert node.inner is not None
    width = node.inner.planes[2]
    channels, height, out_width = node.target.planes
    tall, wide = node.target.rows()
    return [
        f"vec *rows = m + {writer.memory.rows[node]};",
        f"bvec *choice = (bvec *)(m + {writer.memory.kept[node]});",
        "int y, o;",
        f"for (y = 0; y < {height}; y++) {{",
        f"    const vec *in = {_input_of(writer, node)} + (long)y * {2 * _row_step(node)};",
        f"    for (o = 0; o < {channels}; o++) {{",
        f"        vec *out = {writer.activation_at(node.target)} + ((long)o * {tall} + y) * {wide};",
        *_row_tiles(writer, node, "in", "rows", width, "PLAIN", "0.0f", indent=8),
        *_row_tiles(writer, node, f"in + {_row_step(node)}", f"rows + {width}", width, "PLAIN", "0.0f", indent=8),
        f"        pool_rows(rows, rows + {width}, {out_width}, out, "
        f"choice + ((long)o * {height} + y) * {out_width}, {int(node.target.gate is not None)});",
        "    }",
        "}",
    ]


def _input_of(writer: Writer, node: Affine) -> str:
    """The origin of the weights' addresses: the source's memory, borders included."""
    return f"m + {writer.memory.activations[node.sources[0]]}"


def _row_step(node: Affine) -> int:
    """Elements of the source from one output row to the next."""
    return node.strides[0] * node.sources[0].rows()[1]


def _row_tiles(
    writer: Writer, node: Affine, source: str, target: str, width: int, mode: str, slope: str, indent: int
) -> Lines:
    start = "bias[o]" if (node.bias >= 0).any() else "0.0f"
    step = node.strides[1]
    return [
        f"{' ' * indent}tile_{size}({source} + {begin * step}, {step}, {target} + {begin}, 1, place + row[o], "
        f"weight + row[o], row[o + 1] - row[o], {start}, {mode}, {slope}, m);"
        for begin, size in writer.tile_row(width)
    ]


def _unpool(writer: Writer, node: Affine) -> Lines:
    assert node.inner is not None
    channels, height, width = node.target.planes
    _, inner_height, inner_width = node.inner.planes
    tall, wide = node.target.rows(gradient=True)
    deep, long = node.inner.rows(gradient=True)
    lines = [
        "{",
        f"const bvec *choice = (const bvec *)(m + {writer.memory.kept[node]});",
        "int o, y;",
        f"for (o = 0; o < {channels}; o++) {{",
        f"    vec *to = {writer.gradient_at(node.inner)} + (long)o * {deep * long};",
        f"    for (y = 0; y < {height}; y++) {{",
        f"        const vec *g = {writer.gradient_at(node.target)} + ((long)o * {tall} + y) * {wide};",
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


def _weight_gradients(writer: Writer, node: Affine, layer: int, has_bias: bool) -> Lines:
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
            f"const vec *in = {_input_of(writer, node)}, *g = {writer.gradient_at(planes)};",
            "int o, k;",
            f"for (o = 0; o < {channels}; o++) {{",
            f"    const vec h = g[(long)o * {tall * wide}];",
            *(["    bias[o] += total(h);"] if has_bias else []),
            "    for (k = row[o]; k < row[o + 1]; k++) weight[k] += total(in[place[k]] * h);",
            "}",
        ]
    source = node.sources[0]
    bytes_of_row = 4 * writer.block * (source.planes[0] * node.strides[0] * source.rows()[1] + channels * wide)
    band = max(1, min(height, BAND_BYTES // bytes_of_row))
    step, in_row = node.strides[1], _row_step(node)
    return [
        *lists,
        *bias,
        "vec *sum = at->partial;",
        *([f"vec *sums = at->partial + row[{channels}];"] if has_bias else []),
        "int y, o, k;",
        f"for (k = 0; k < row[{channels}] + {channels}; k++) sum[k] = ZERO;",
        f"for (y = 0; y < {height}; y += {band}) {{",
        f"    const int rows = {height} - y < {band} ? {height} - y : {band};",
        f"    const vec *in = {_input_of(writer, node)} + (long)y * {in_row};",
        f"    for (o = 0; o < {channels}; o++) {{",
        f"        const vec *g = {writer.gradient_at(planes)} + ((long)o * {tall} + y) * {wide};",
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


def _source_gradient(writer: Writer, node: Affine, layer: int) -> Lines:
    """The transposed layer; with strides, each phase of the source's pixels has lists of its own."""
    source, planes = node.sources[0], node.planes
    gates = writer.gates(node, source)
    mode = "GATE" if gates else "PLAIN"
    if not writer.first_writer(node, source):
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
        writer.widths.add(1)
        return [
            *lines,
            "int y, x, i = 0;",
            "(void)q;",
            f"for (c = 0; c < {channels}; c++) for (y = 0; y < {height}; y++)",
            f"for (x = 0; x < {width}; x++, i++) {{",
            f"    vec *to = {writer.gradient_at(source)} + ((long)c * {tall} + y) * {wide} + x;",
            f"    const vec *gate = {writer.activation_at(source)} + ((long)c * {deep} + y) * {long} + x;",
            f"    tile_1({writer.gradient_at(planes)}, 1, to, 1, place + row[i], weight + row[i], "
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
            base = f"m + {writer.memory.gradients[planes]} + (long)(q + {first_y}) * {grad_row} + {first_x}"
            to = f"{writer.gradient_at(source)} + ((long)c * {tall} + q * {sy} + {y}) * {wide} + {x}"
            gate = f"{writer.activation_at(source)} + ((long)c * {deep} + q * {sy} + {y}) * {long} + {x}"
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
                    for begin, size in writer.tile_row(count_x)
                ),
                "    }",
                "}",
            ]
    return lines


def _phase(phase: int, stride: int, low: int, size: int) -> tuple[int, int]:
    """(first, count) of the rows q for which row q * stride + phase - low of the source exists."""
    first = -(-(low - phase) // stride) if low > phase else 0
    last = (low + size - 1 - phase) // stride
    return first, max(last - first + 1, 0)
