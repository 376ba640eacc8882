"""The picture of teacher and student while they learn."""

from __future__ import annotations

from pathlib import Path

from nttzoo._util import figures
from nttzoo.experiments.trajectories import Trajectories
from nttzoo.search.report import curves


def trajectories(seen: Trajectories, path: Path) -> None:
    """The search's losses, the training losses, and the paths of the outputs, averaged over each class."""
    figure, axes = figures.subplots(1, 3, figsize=(15, 4.5))
    styles = {"teacher": "C0-", "random": "C2-", "linearised teacher": "C0--"}
    for (who, found), color in zip(seen.found.items(), ("C1", "C3", "C4"), strict=False):
        curves(axes[0], found, "kernel", "kernel distance", color=color, label=who)
        styles[who] = f"{color}-"
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
    figures.save(figure, path)
