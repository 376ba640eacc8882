"""Pictures of measurements."""

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


def training(result: dict[str, Any], path: Path) -> None:
    """Milliseconds of a training step over density, beside dense training and SparseProp."""
    names = {"conv4": "Conv-4", "lenet5": "LeNet-5", "lenet300": "LeNet-300-100"}
    figure, axes = figures.subplots(1, len(names), figsize=(5 * len(names), 4.5), squeeze=False)
    for axis, (name, title) in zip(axes[0], names.items(), strict=True):
        rows = [row for row in result["rows"] if row["network"] == name]
        for scheme in ("layerwise", "global"):
            own = [row for row in rows if row["scheme"] == scheme]
            if own:
                axis.plot(*_over_density(own, "ms"), marker="o", label=f"compiled, {scheme}")
        if peers := [row for row in rows if "sparseprop_ms" in row]:
            axis.plot(*_over_density(peers, "sparseprop_ms"), marker="s", label="SparseProp")
        axis.axhline(rows[0]["torch_ms"], color="0.4", linestyle="--", label="PyTorch, dense")
        if "jax_ms" in rows[0]:
            axis.axhline(rows[0]["jax_ms"], color="0.4", linestyle=":", label="JAX, dense")
        if floors := result.get("limit", {}).get(name):
            times = [floor["multiply_adds_ms"] for floor in floors.values()]
            axis.plot([100 * float(density) for density in floors], times, "k", linewidth=1, label="limit")
        axis.set(xscale="log", yscale="log", xlabel="weights kept, %", title=title)
    axes[0, 0].set_ylabel("training step, ms (batch 64, two threads)")
    axes[0, 0].legend(frameon=False)
    figures.save(figure, path)


def _over_density(rows: list[dict[str, Any]], key: str) -> tuple[list[float], list[float]]:
    return [100 * row["density"] for row in rows], [row[key] for row in rows]
