"""The picture of measured speedups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nttzoo._util import figures


def runtimes(result: dict[str, Any], path: Path) -> None:
    """Measured against theoretical speedup over density, for each architecture and runtime; batch 1, one thread."""
    kinds = list(dict.fromkeys(row["architecture"] for row in result["cases"]))
    figure, axes = figures.subplots(1, len(kinds), figsize=(5 * len(kinds), 4.5), squeeze=False)
    for axis, kind in zip(axes[0], kinds, strict=True):
        rows = sorted((row for row in result["cases"] if row["architecture"] == kind), key=lambda row: row["density"])
        times = [row["milliseconds"]["1"]["1"] for row in rows]
        densities = [100 * row["density"] for row in rows]
        for name in times[0]:
            axis.plot(densities, [times[-1]["onnxruntime"] / time[name] for time in times], marker="o", label=name)
        axis.plot(densities, [row["theoretical"] for row in rows], "k--", label="multiply-adds")
        axis.axhline(1, color="0.7", linewidth=1, zorder=0)
        axis.set(xscale="log", yscale="log", xlabel="weights kept, %", title=kind)
    axes[0, 0].set_ylabel("times faster than the dense network\nin ONNX Runtime (one image, one thread)")
    axes[0, 0].legend(frameon=False)
    figures.save(figure, path)
