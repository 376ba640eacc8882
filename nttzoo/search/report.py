"""The picture of a finished search."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nttzoo._util import figures
from nttzoo.ntk import empirical_ntk
from nttzoo.search.loop import Found
from nttzoo.sparsity.masks import density_report

KERNEL_IMAGES = 32


def plot(found: Found, path: Path) -> None:
    """Loss curves, teacher's and students' kernels side by side, density per layer."""
    shown = found.students[:4]
    columns = max(3, 1 + len(shown))
    figure, axes = figures.subplots(2, columns, figsize=(4.5 * columns, 7.5))
    curves(axes[0, 0], found, "kernel", "kernel distance")
    curves(axes[0, 1], found, "target", "target distance")
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
    figures.save(figure, path)


def curves(axis: Any, found: Found, term: str, title: str, *, color: str = "", label: str = "") -> None:
    """One term of the loss over the steps, for every student; color and label are for a single one."""
    for i, student in enumerate(found.students):
        name, own = student.target.name, color or f"C{i}"
        entries = [(line["step"], line["students"][name]) for line in found.reports]
        batches = [(step, entry[term]) for step, entry in entries if term in entry]
        held = [(step, entry[f"held_out_{term}"]) for step, entry in entries if f"held_out_{term}" in entry]
        axis.plot(*zip(*batches, strict=True), color=own, alpha=0.4, linewidth=1)
        axis.plot(*zip(*held, strict=True), color=own, marker="o", markersize=3, label=label or name)
    dots = "held out" if found.plan.held_out else "a fixed set"
    # The kernel of a linear model does not depend on its weights: its distance is 0 throughout.
    scale = "log" if any(np.max(line.get_ydata()) > 0 for line in axis.lines) else "linear"
    axis.set(xlabel="step", ylabel=title, yscale=scale, title=f"{title}\nline: batches, dots: {dots}")
    axis.legend(frameon=False)


def _densities(axis: Any, found: Found) -> None:
    width = 0.8 / len(found.students)
    for i, student in enumerate(found.students):
        layers = density_report(student.model).layers
        places = np.arange(len(layers)) + i * width
        axis.bar(places, [max(layer.density, 1e-6) for layer in layers], width, label=student.target.name)
        axis.set_xticks(np.arange(len(layers)) + 0.4 - width / 2, [layer.name for layer in layers], rotation=30)
    axis.set(ylabel="weights kept", yscale="log", title="density per layer")
