"""Pooling in C."""

from __future__ import annotations

from nttzoo.codegen.source import float_literal
from nttzoo.codegen.training.emit.writer import Lines, Writer
from nttzoo.codegen.training.graph import Pooling


def pooling(writer: Writer, node: Pooling) -> tuple[Lines, Lines]:
    """A maximum or average; a maximum stores its argmax, so that the backward pass breaks ties alike."""
    source, target = node.sources[0], node.target
    channels, height, width = target.planes
    tall, wide = source.rows()
    (kh, kw), (sy, sx), (top, left, _, _) = node.window, node.strides, node.pads
    is_max = node.kind == "max"
    kept = [f"bvec *choice = (bvec *)(m + {writer.memory.kept[node]});"] if is_max else []
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
        f"    const vec *in = {writer.activation_at(source)} + (long)c * {tall * wide};",
        f"    vec *out = {writer.activation_at(target)} + (long)c * {target.rows()[0] * target.rows()[1]};",
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
        f"    vec *to = {writer.gradient_at(source)} + (long)c * {deep * long};",
        f"    const vec *g = {writer.gradient_at(target)} + (long)c * {high * far};",
        *([f"    {zero}"] if writer.first_writer(node, source) else []),
        f"    {loops}",
        *(f"        {line}" for line in [*window, *give]),
        "    }",
        "}",
    ]
    return forward, backward
