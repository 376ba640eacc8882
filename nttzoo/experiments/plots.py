"""Every picture; the only matplotlib code."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np

matplotlib.use("agg")
import matplotlib.pyplot as plt

from nttzoo.ntk import empirical_ntk
from nttzoo.sparsity.masks import density_report

if TYPE_CHECKING:
    from nttzoo.experiments.trajectories import Trajectories
    from nttzoo.search import Found

KERNEL_IMAGES = 32


def search_report(found: Found, path: Path) -> None:
    """Loss curves, teacher's and students' kernels side by side, density per layer."""
    shown = found.students[:4]
    columns = max(3, 1 + len(shown))
    figure, axes = plt.subplots(2, columns, figsize=(4.5 * columns, 7.5), layout="constrained")
    _curves(axes[0, 0], found, "kernel", "kernel distance")
    _curves(axes[0, 1], found, "target", "target distance")
    _densities(axes[0, 2], found)
    for spare in axes[0, 3:]:
        spare.axis("off")
    images = found.evaluation[:KERNEL_IMAGES]
    kernel_of = partial(empirical_ntk, x1=images, outputs="trace", tangents=found.plan.recipe.tangents)
    kernels = {"teacher": kernel_of(found.teacher), **{s.target.name: kernel_of(s.model) for s in shown}}
    top = max(float(np.max(kernel)) for kernel in kernels.values())
    for axis, (name, kernel) in zip(axes[1], kernels.items(), strict=False):
        picture = axis.imshow(np.asarray(kernel), vmin=0, vmax=top, cmap="magma")
        axis.set(title=f"kernel of {name}", xticks=[], yticks=[])
    figure.colorbar(picture, ax=list(axes[1]), shrink=0.8, label="trace over outputs")
    for spare in axes[1, len(kernels) :]:
        spare.axis("off")
    _save(figure, path)


def trajectories(seen: Trajectories, path: Path) -> None:
    """The search's losses, the training losses, and the paths of the outputs, averaged over each class."""
    figure, axes = plt.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    _curves(axes[0], seen.found, "kernel", "kernel distance")
    styles = {"teacher": "C0-", "student": "C1-", "random": "C2-", "linearised teacher": "C0--"}
    for who, losses in seen.losses().items():
        axes[1].plot(losses, styles[who], label=who)
    axes[1].set(xlabel="step of gradient descent", ylabel="loss", yscale="log", title="training loss")
    axes[1].legend(frameon=False)
    for who, outputs in seen.outputs.items():
        for digit in (0, 1):
            mean = outputs[:, seen.targets[:, digit] == 1].mean(1)
            axes[2].plot(*mean.T, styles[who], label=who if digit == 0 else None)
            axes[2].plot(*mean[0], "k.", markersize=4)
            axes[2].annotate(str(digit), seen.targets[seen.targets[:, digit] == 1][0], fontsize=14, ha="center")
    axes[2].set(xlabel="output 0", ylabel="output 1", title="mean outputs for zeros and ones")
    _save(figure, path)


def runtimes(result: dict[str, Any], path: Path) -> None:
    """Measured against theoretical speed-up over density, for each architecture and runtime; batch 1, one thread."""
    kinds = list(dict.fromkeys(row["architecture"] for row in result["cases"]))
    figure, axes = plt.subplots(1, len(kinds), figsize=(5 * len(kinds), 4.5), layout="constrained", squeeze=False)
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
    _save(figure, path)


def _curves(axis: Any, found: Found, term: str, label: str) -> None:
    for i, student in enumerate(found.students):
        name, colour = student.target.name, f"C{i}"
        entries = [(line["step"], line["students"][name]) for line in found.reports]
        batches = [(step, entry[term]) for step, entry in entries if term in entry]
        held = [(step, entry[f"held_out_{term}"]) for step, entry in entries if f"held_out_{term}" in entry]
        axis.plot(*zip(*batches, strict=True), color=colour, alpha=0.4, linewidth=1)
        axis.plot(*zip(*held, strict=True), color=colour, marker="o", markersize=3, label=name)
    dots = "held out" if found.plan.held_out else "a fixed set"
    axis.set(xlabel="step", ylabel=label, yscale="log", title=f"{label}\nline: batches, dots: {dots}")
    axis.legend(frameon=False)


def _densities(axis: Any, found: Found) -> None:
    width = 0.8 / len(found.students)
    for i, student in enumerate(found.students):
        layers = density_report(student.model).layers
        places = np.arange(len(layers)) + i * width
        axis.bar(places, [max(layer.density, 1e-6) for layer in layers], width, label=student.target.name)
        axis.set_xticks(np.arange(len(layers)) + 0.4 - width / 2, [layer.name for layer in layers], rotation=30)
    axis.set(ylabel="weights kept", yscale="log", title="density per layer")


def _save(figure: Any, path: Path) -> None:
    """Writes a picture whole or not at all."""
    part = path.with_name(f".{path.name}")
    figure.savefig(part, dpi=110, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    part.replace(path)
