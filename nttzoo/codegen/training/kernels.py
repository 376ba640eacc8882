"""C code that all training steps share: the files of `c/`, and kernels that compute tiles of several elements.

A vector holds one element of all examples of a block, so that every load is a whole vector and a weight is one
broadcast; with BLOCK 1, for devices, a vector is a float and the same code needs nothing but a C99 compiler.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources


def text(file: str, /, **marks: object) -> str:
    """A file of `c/`, with each @MARK@ replaced by its value."""
    found = (resources.files(__package__) / "c" / file).read_text()
    for mark, value in marks.items():
        found = found.replace(f"@{mark.upper()}@", str(value))
    return found


def tiles(widths: Iterable[int]) -> str:
    """Kernels that compute neighboring elements in registers: bias plus weighted inputs."""
    return "\n".join(_tile(width) for width in sorted(widths))


def _tile(width: int) -> str:
    # A single element has four partial sums, so that additions are independent.
    if width == 1:
        body = [
            "    vec a = ZERO, b = ZERO, c = ZERO, d = ZERO;",
            "    int k = 0;",
            "    if (mode & ADD) a = out[0]; else a += start;",
            "    for (; k + 3 < count; k += 4) {",
            "        a += weight[k] * in[place[k]], b += weight[k + 1] * in[place[k + 1]];",
            "        c += weight[k + 2] * in[place[k + 2]], d += weight[k + 3] * in[place[k + 3]];",
            "    }",
            "    for (; k < count; k++) a += weight[k] * in[place[k]];",
            "    a = (a + b) + (c + d);",
            "    (void)step, (void)to;",
        ]
    else:
        indices = range(width)
        body = [
            f"    vec {', '.join(f'a{i} = ZERO' for i in indices)};",
            "    int k;",
            "    if (mode & ADD) {",
            "        " + " ".join(f"a{i} = out[{i} * to];" for i in indices),
            "    } else {",
            "        " + " ".join(f"a{i} += start;" for i in indices),
            "    }",
            "    for (k = 0; k < count; k++) {",
            "        const vec *from = in + place[k];",
            "        const float w = weight[k];",
            "        " + " ".join(f"a{i} += w * from[{i} * step];" for i in indices),
            "    }",
        ]
    names = ["a"] if width == 1 else [f"a{i}" for i in range(width)]
    finish = [f"    out[{i} * to] = finish({name}, mode, slope, gate + {i} * to);" for i, name in enumerate(names)]
    return "\n".join(
        [
            f"INLINE void tile_{width}(const vec *in, long step, vec *out, long to, const int32_t *RESTRICT place,",
            "        const float *RESTRICT weight, int count, float start, int mode, float slope, const vec *gate) {",
            *body,
            *finish,
            "}\n",
        ]
    )
