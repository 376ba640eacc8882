"""The frame of a C source: names, literals, the header and what a network says of itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from nttzoo.codegen import kernels

Metadata = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """A header and a C file, and the name that all their symbols start with."""

    name: str
    header: str
    code: str
    arena: int  # floats that the caller provides for one example at a time
    batch_arena: int  # and for a batch
    inputs: int
    outputs: int
    table_bytes: int  # weights, biases and places
    work: int  # multiply-adds of one example


def identifier(name: str) -> str:
    """A C identifier that looks like the name."""
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
    """The header: sizes, what goes in and comes out, and how to call it."""
    upper = name.upper()
    declared = [f"extern const float {name}_{key}[{len(about[key])}];" for key in ("mean", "std") if key in about]
    if "classes" in about:
        declared.append(f"extern const char *const {name}_classes[{len(about['classes'])}];")
    shape = f", an array {about['shape']} in C order" if "shape" in about else ""
    scaled = " * Inputs are standardized: (pixel / 255 - mean) / std, per channel.\n" if "mean" in about else ""
    sizes = {"arena": arena, "batch_arena": batch_arena, "inputs": inputs, "outputs": outputs}
    texts = {"shape": shape, "scaled": scaled, "declared": "".join(f"{line}\n" for line in declared)}
    return kernels.HEADER.format(name=name, upper=upper, **sizes, **texts)
