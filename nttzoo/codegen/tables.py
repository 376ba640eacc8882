"""Constant arrays in C: the surviving weights and where they are, each distinct array once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nttzoo.codegen.source import float_literal

SHARED_FROM = 16  # an existing table is used again, unless it is shorter
Rows = list[tuple[float, np.ndarray, np.ndarray]]  # bias, places, weights


def from_lowest(rows: Rows) -> tuple[int, Rows]:
    """(The lowest address, the rows with addresses counted from it): steps of a recurrence then share their tables."""
    lowest = min((int(places.min()) for _, places, _ in rows if len(places)), default=0)
    return lowest, [(bias, places - lowest, weights) for bias, places, weights in rows]


class Tables:
    """Writes constant arrays and counts their bytes."""

    def __init__(self) -> None:
        self.table_bytes = 0
        self.tables: dict[tuple[str, bytes], str] = {}

    def table(self, name: str, values: Sequence[Any] | np.ndarray, kind: str) -> str:
        """A constant array."""
        if len(values) >= SHARED_FROM:
            content = np.asarray(values, np.float32 if kind == "float" else np.int64).tobytes()
            first = self.tables.setdefault((kind, content), name)
            if first != name:
                return f"#define {name} {first}"
        values = list(values) or [0]  # C has no empty arrays
        self.table_bytes += len(values) * {"uint16_t": 2, "uint32_t": 4, "int32_t": 4, "float": 4}[kind]
        written = [float_literal(value) if kind == "float" else str(int(value)) for value in values]
        rows = _filled(written)
        return f"static const {kind} {name}[{len(values)}] = {{\n{rows}\n}};"

    def weighted(self, name: str, rows: Rows, alike: bool = False) -> tuple[list[str], str]:
        """The tables of rows (bias, places, weights), and "16" or "32": the bits of an address.

        If all rows have their weights at the same addresses (`alike`), the table contains these once.
        """
        bits = self.bits_of(rows)
        counts = [len(places) for _, places, _ in rows]
        kind = "uint16_t" if max(counts, default=0) < 2**16 else "uint32_t"
        placed = [places for _, places, _ in (rows[:1] if alike else rows)]
        tables = [
            self.table(f"{name}_place", np.concatenate([np.zeros(0, int), *placed]), f"uint{bits}_t"),
            self.table(f"{name}_weight", [weight for _, _, weights in rows for weight in weights], "float"),
            self.table(f"{name}_count", counts, kind),
            self.table(f"{name}_bias", [bias for bias, _, _ in rows], "float"),
        ]
        return tables, bits

    def bits_of(self, rows: Rows) -> str:
        """How many bits the addresses of some rows need: "16" or "32"."""
        return "16" if max((int(places.max()) for _, places, _ in rows if len(places)), default=0) < 2**16 else "32"


def _filled(words: list[str]) -> str:
    """Words with commas in indented lines of at most 116 letters; `textwrap` takes seconds for a large table."""
    lines, line = [], "   "
    for word in [*(f"{word}," for word in words[:-1]), words[-1]]:
        if len(line) + len(word) + 1 > 116:
            lines.append(line)
            line = "   "
        line += f" {word}"
    return "\n".join([*lines, line])
