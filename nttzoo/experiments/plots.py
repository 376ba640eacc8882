"""The pictures of comparisons, and of teacher and student while they learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from nttzoo._util import figures
from nttzoo.experiments.comparison import kept_share
from nttzoo.experiments.trajectories import Trajectories
from nttzoo.search.report import curves


def trajectories(seen: Trajectories, path: Path) -> None:
    """The search's distances, the training losses, and the paths of the outputs, averaged over each class.

    Both axes of the losses are logarithmic: a network that learns like the teacher at a fraction of its speed has the
    teacher's curve, moved to the right. Dots on the paths are at the same steps for all networks.
    """
    figure, axes = figures.subplots(1, 3, figsize=(15, 4.8))
    styles = {"teacher": "k-", "random": "C2-", "linearized teacher": "k--"}
    for (who, found), color in zip(seen.found.items(), ("C1", "C0", "C4"), strict=False):
        curves(axes[0], found, "kernel", "kernel distance in the search", color=color, label=who)
        styles[who] = f"{color}-"
    losses = seen.losses()
    steps = np.arange(len(losses["teacher"]))
    for who, values in losses.items():
        axes[1].plot(steps[1:], values[1:], styles[who], label=who)
    axes[1].axhline(losses["teacher"][0] / 10, color="0.8", linewidth=1, zorder=0)
    axes[1].set(xlabel="step of gradient descent", ylabel="loss", xscale="log", yscale="log", title="training loss")
    axes[1].legend(frameon=False, fontsize=8)
    marks = [0, *(10**k for k in range(int(np.log10(max(len(steps) - 1, 1))) + 1))]
    for who, outputs in seen.outputs.items():
        for digit in (0, 1):
            mean = outputs[:, seen.targets[:, digit] == 1].mean(1)
            axes[2].plot(*mean.T, styles[who], linewidth=1.2)
            if who != "linearized teacher":
                axes[2].plot(*mean[marks].T, styles[who][:-1], marker="o", markersize=4, linestyle="")
            axes[2].annotate(str(digit), seen.targets[seen.targets[:, digit] == 1][0], fontsize=14, ha="center")
    shown = ", ".join(f"{mark:,}" for mark in marks)
    axes[2].set(xlabel="output 0", ylabel="output 1", title=f"mean outputs for zeros and ones\ndots: steps {shown}")
    figures.save(figure, path)


def comparison(content: dict[str, Any], path: Path) -> None:
    """Test accuracy over density: a panel for each scheme, a line for each method; between lowest and highest seed."""
    cases = [case for case in content["cases"] if "control" not in case]
    schemes = list(dict.fromkeys(case["scheme"] for case in cases if "scheme" in case)) or ["layerwise"]
    methods = list(dict.fromkeys(case["method"] for case in cases))
    figure, axes = figures.subplots(1, len(schemes), figsize=(5.5 * len(schemes), 4.5), squeeze=False)
    for axis, scheme in zip(axes[0], schemes, strict=True):
        for i, method in enumerate(methods):
            found: dict[float, list[float]] = {}
            for case in cases:
                if case["method"] == method and case.get("scheme", scheme) == scheme:
                    found.setdefault(kept_share(case) if "density" in case else 0.0, []).append(
                        100 * case["test_accuracy"]
                    )
            if method == "dense" and found:
                axis.axhline(np.mean(found[0.0]), color="0.6", linestyle="--", label="dense")
            elif found:
                x = sorted(found)
                style: dict[str, Any] = {"color": f"C{i % 10}", "linestyle": "-" if i < 10 else ":"}
                axis.plot([100 * d for d in x], [np.mean(found[d]) for d in x], marker="o", label=method, **style)
                low, high = ([pick(found[d]) for d in x] for pick in (min, max))
                axis.fill_between([100 * d for d in x], low, high, color=style["color"], alpha=0.12, linewidth=0)
        axis.set(xscale="log", xlabel="weights kept, %", ylabel="test accuracy, %", title=scheme)
        axis.legend(frameon=False, fontsize=8)
    settings = content["comparison"]
    figure.suptitle(f"{settings['model']} on {settings['data']}, {settings['train_epochs']} epochs")
    figures.save(figure, path)
