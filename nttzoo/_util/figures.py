"""Figures as files. Nothing here touches pyplot, whose backend and open figures belong to the caller's program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from nttzoo._util import files


def subplots(rows: int, columns: int, *, figsize: tuple[float, float], squeeze: bool = True) -> tuple[Figure, Any]:
    """(figure, axes) like `matplotlib.pyplot.subplots`, without registering the figure with pyplot."""
    figure = Figure(figsize=figsize, layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=squeeze)


def save(figure: Figure, path: Path) -> None:
    """Writes a figure atomically, as PNG or, if the name ends in .svg, as SVG; without a date."""
    kind = "svg" if path.suffix == ".svg" else "png"
    metadata: dict[str, Any] = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
    options: dict[str, Any] = {"dpi": 110, "bbox_inches": "tight", "metadata": metadata, "format": kind}
    files.write_file(path, lambda part: figure.savefig(part, **options))
