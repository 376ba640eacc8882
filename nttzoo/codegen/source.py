"""Parts of a C source: names, literals, the header, and the network's metadata."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

Metadata = dict[str, Any]

_HEADER = """\
/* {name}: a sparse network as plain C, made by nttzoo.
 *
 * An example has {inputs} floats{shape}; the output has {outputs}.
{scaled} *
 *     static float arena[{upper}_ARENA];
 *     float output[{upper}_OUTPUTS];
 *     {name}_run(input, output, arena);
 *
 * There is no heap and no state but the arena, which needs no initialization: calls with separate arenas may run
 * concurrently.
 */
#ifndef {upper}_H
#define {upper}_H

#define {upper}_INPUTS {inputs}
#define {upper}_OUTPUTS {outputs}
#define {upper}_ARENA {arena}
#define {upper}_BATCH_ARENA {batch_arena}

#ifdef __cplusplus
extern "C" {{
#endif

{declared}void {name}_run(const float *input, float *output, float *arena);
/* Any number of consecutive examples; the arena has {upper}_BATCH_ARENA floats. */
void {name}_run_batch(const float *input, float *output, int count, float *arena);

#ifdef __cplusplus
}}
#endif

#endif
"""


@dataclass(frozen=True)
class Source:
    """A header, a C file, and the prefix of all their symbols."""

    name: str
    header: str
    code: str
    arena: int  # floats that the caller provides for one example at a time
    batch_arena: int  # and for a batch
    inputs: int
    outputs: int
    table_bytes: int  # weights, biases and addresses
    work: int  # multiply-adds of one example


def identifier(name: str) -> str:
    """The name as a C identifier."""
    made = re.sub(r"\W", "_", name, flags=re.ASCII)
    return made if re.match(r"[A-Za-z]", made) else f"net_{made}"


def float_literal(value: Any) -> str:
    """A C literal that reads back as exactly this float32."""
    text = f"{float(np.float32(value)):.9g}"
    return f"{text}f" if "." in text or "e" in text else f"{text}.0f"


def metadata_tables(name: str, about: Metadata) -> list[str]:
    """The definitions of mean, std and class names, where they are known."""
    lines = []
    for key in ("mean", "std"):
        if key in about:
            values = ", ".join(map(float_literal, about[key]))
            lines.append(f"const float {name}_{key}[{len(about[key])}] = {{{values}}};")
    if "classes" in about:
        texts = ", ".join(_string(text) for text in about["classes"])
        lines.append(f"const char *const {name}_classes[{len(about['classes'])}] = {{{texts}}};")
    return [*lines, ""]


def _string(text: str) -> str:
    """A C string literal."""
    kept = "".join(letter if letter.isascii() and letter.isprintable() else "_" for letter in text)
    return '"' + kept.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?") + '"'  # no trigraphs


def header(name: str, arena: int, batch_arena: int, inputs: int, outputs: int, about: Metadata) -> str:
    """The header: sizes, inputs and outputs, and the functions to call."""
    upper = name.upper()
    declared = [f"extern const float {name}_{key}[{len(about[key])}];" for key in ("mean", "std") if key in about]
    if "classes" in about:
        declared.append(f"extern const char *const {name}_classes[{len(about['classes'])}];")
    shape = f", an array {about['shape']} in C order" if "shape" in about else ""
    scaled = " * Inputs are standardized: (pixel / 255 - mean) / std, per channel.\n" if "mean" in about else ""
    sizes = {"arena": arena, "batch_arena": batch_arena, "inputs": inputs, "outputs": outputs}
    texts = {"shape": shape, "scaled": scaled, "declared": "".join(f"{line}\n" for line in declared)}
    return _HEADER.format(name=name, upper=upper, **sizes, **texts)
