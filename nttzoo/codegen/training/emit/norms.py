"""Normalization in C."""

from __future__ import annotations

from nttzoo.codegen.source import float_literal
from nttzoo.codegen.training.emit.writer import Lines, Writer
from nttzoo.codegen.training.graph import Normalization, Value


def normalization(writer: Writer, node: Normalization) -> tuple[Lines, Lines]:
    """Group normalization, which keeps the mean and the inverse deviation of each group."""
    source, target = node.sources[0], node.target
    index = writer.norms.index(node)
    channels = target.planes[0] // node.groups
    count = channels * target.planes[1] * target.planes[2]
    has_scale, has_bias = node.scale is not None, node.bias is not None
    scale = [f"const float *scale = net->theta + net->norm_starts[{2 * index}];"] if has_scale else []
    shift = [f"const float *shift = net->theta + net->norm_starts[{2 * index + 1}];"] if has_bias else []
    kept = [f"vec *mean = m + {writer.memory.kept[node]}, *factor = mean + {node.groups};", "int group;"]
    scaled = " * scale[c]" if has_scale else ""

    def of_group(rows: list[tuple[str, Value, bool]], body: Lines, sums: str = "") -> Lines:
        lines = writer.over(target, rows, body, sums)
        lines[1] = f"for (c = group * {channels}; c < (group + 1) * {channels}; c++) {{"
        return ["{", *lines, "}"]

    a, b = ("a", source, False), ("b", target, False)
    h, g = ("h", target, True), ("g", source, True)
    stored, backward = writer.own_gate(node)
    value = f"const vec v = (a[x] - s) * factor[group]{scaled}{' + shift[c]' if has_bias else ''};"
    forward = [
        *scale,
        *shift,
        *kept,
        f"for (group = 0; group < {node.groups}; group++) {{",
        "    vec s = ZERO, q = ZERO, e = ZERO;",
        *of_group([a], ["row_s += a[x];"], "s"),
        f"    s = s / {float_literal(count)};",
        # In an almost constant group, the mean's rounding error matters: the mean of the residuals corrects it.
        *of_group([a], ["const vec d = a[x] - s;", "row_e += d, row_q += d * d;"], "eq"),
        f"    e = e / {float_literal(count)}, s += e;",
        f"    q = q / {float_literal(count)} - e * e + {float_literal(node.epsilon)};",
        "    mean[group] = s, factor[group] = inverse_root(q);",
        *of_group([a, b], [value, f"b[x] = {stored};"]),
        "}",
    ]
    writer.functions.add("root")
    sign = "=" if writer.first_writer(node, source) else "+="
    gradients = []
    if has_scale:
        gradients.append(f"float *d_scale = at->gradient + net->norm_starts[{2 * index}];")
    if has_bias:
        gradients.append(f"float *d_shift = at->gradient + net->norm_starts[{2 * index + 1}];")
    centered = "const vec d = (a[x] - mean[group]) * factor[group];"
    sums = of_group([a, h], [centered, "row_p += h[x], row_r += h[x] * d;"], "pr")
    # Sums over each channel, which add up to those over the group.
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
