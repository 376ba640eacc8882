"""The paper's figures from results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nttzoo._util import figures
from nttzoo.experiments import paper
from nttzoo.experiments.comparison import UNIFORM
from nttzoo.experiments.results import Result, cells, grouped, longest, where
from nttzoo.search import recipes

SCHEME_MARKS = {"layerwise": "o", "global": "s", "erk": "^", "budget": "*"}


def write(found: list[Result], folder: Path) -> dict[str, Path]:
    """Draws every figure that there are results for, as PNG and SVG: {title: PNG}."""
    drawn: dict[str, Path] = {}
    made: list[tuple[str, str, Callable[[list[Result]], Any]]] = [
        ("Learning curves", "curves", curves),
        ("Accuracy over density", "density", over_density),
        ("Weights that remain in each layer", "layers", layers),
        ("Accuracy over multiply-adds", "tradeoff", tradeoff),
    ]
    for title, name, draw in made:
        figure = draw(found)
        if figure is not None:
            folder.mkdir(parents=True, exist_ok=True)
            for kind in ("svg", "png"):
                figures.save(figure, folder / f"{name}.{kind}")
            drawn[title] = folder / f"{name}.png"
    return drawn


def curves(found: list[Result]) -> Any:
    """Training and test accuracy by epoch, lenet300 at 3 %: mean over seeds, and between lowest and highest."""
    part = [r for r in where(found, model="lenet300", control="") if r.method == "dense" or r.density == 0.03]
    part = [r for r in part if r.epochs > 1 and r.scheme == "layerwise"]
    datasets = sorted({r.data for r in part if r.method in recipes.NAMES})
    if not datasets:
        return None
    figure, axes = figures.subplots(len(datasets), 2, figsize=(11, 4 * len(datasets)), squeeze=False)
    for row, data in zip(axes, datasets, strict=True):
        for axis, kind in zip(row, ("train_accuracy", "test_accuracy"), strict=True):
            for i, (method, group) in enumerate(grouped(where(part, data=data), lambda r: r.method).items()):
                most = max(r.epochs for r in group)
                values = 100 * np.array([r.content["history"][kind] for r in group if r.epochs == most])
                style: dict[str, Any] = {"color": "0.6", "linestyle": "--"} if method == "dense" else {"color": f"C{i}"}
                steps = np.arange(1, most + 1)
                axis.plot(steps, values.mean(0), label=paper.title(method), **style)
                axis.fill_between(steps, values.min(0), values.max(0), color=style["color"], alpha=0.15, linewidth=0)
            low = np.percentile([line.get_ydata().min() for line in axis.lines], 50)
            axis.set(xlabel="epoch", ylabel=f"{kind.split('_')[0]} accuracy, %", title=data, ylim=(min(low, 90), 100.2))
        row[0].legend(frameon=False)
    return figure


def over_density(found: list[Result]) -> Any:
    """Test accuracy over density, one picture for each network, data set and scheme.

    A line joins networks that differ in density only: shorter searches or trainings are not part of it.
    """
    part = _at_several_densities(longest(where(found, control="")))
    kinds = {
        key: group
        for key, group in grouped(
            [r for r in part if r.method != "dense"], lambda r: (r.model, r.data, r.scheme, r.dropout)
        ).items()
        if len({r.density for r in group}) > 1
    }
    for (model, data, scheme, dropout), group in kinds.items():
        if scheme == "global":  # random masks are the same under both schemes
            group += where(part, model=model, data=data, scheme="layerwise", dropout=dropout, method=UNIFORM)
    if not kinds:
        return None
    columns = min(len(kinds), 4)
    rows = -(-len(kinds) // columns)
    figure, axes = figures.subplots(rows, columns, figsize=(4.2 * columns, 3.6 * rows), squeeze=False)
    for axis in axes.ravel()[len(kinds) :]:
        axis.axis("off")
    for axis, ((model, data, scheme, dropout), group) in zip(axes.ravel(), kinds.items(), strict=False):
        for i, (method, own) in enumerate(grouped(group, lambda r: r.method).items()):
            points = [(density, cell) for (density,), cell in cells(own, "density")]
            x = [100 * density for density, _ in points]
            axis.plot(x, [cell.mean for _, cell in points], marker="o", color=f"C{i}", label=paper.title(method))
            axis.fill_between(x, [min(c.values) for _, c in points], [max(c.values) for _, c in points], alpha=0.15)
        if dense := where(part, model=model, data=data, method="dense"):
            axis.axhline(np.mean([r.test for r in dense]), color="0.6", linestyle="--", label="dense")
        note = "" if dropout else ", no dropout"
        axis.set(xscale="log", xlabel="weights kept, %", title=f"{model} {data}, {scheme}{note}")
    axes[0, 0].set_ylabel("test accuracy, %")
    axes[0, 0].legend(frameon=False)
    return figure


def _at_several_densities(found: list[Result]) -> list[Result]:
    """Dense networks, and those of a method, search and training that were tried at more than one density."""

    def kind(r: Result) -> tuple[Any, ...]:
        return r.model, r.data, r.scheme, r.method, tuple(sorted(r.change.items())), r.epochs, r.dropout

    several = {key for key, group in grouped(found, kind).items() if len({r.density for r in group}) > 1}
    return [r for r in found if r.method == "dense" or kind(r) in several]


def layers(found: list[Result]) -> Any:
    """Remaining weights in each layer of Conv-4 at 1 %, by scheme and method."""
    part = where(found, model="conv4", data="cifar10", density=0.01, control="", seed=0)
    kinds = grouped(longest(part), lambda r: f"{paper.title(r.method)}, {r.scheme}")
    if not kinds:
        return None
    figure, axis = figures.subplots(1, 1, figsize=(11, 4.5))
    for i, (label, group) in enumerate(kinds.items()):
        counts = group[0].content["layers"]
        places = np.arange(len(counts)) + 0.8 * i / len(kinds)
        axis.bar(places, [max(x["kept"], 0.5) for x in counts], 0.8 / len(kinds), label=label)
        axis.set_xticks(np.arange(len(counts)) + 0.4, [x["name"] for x in counts])
    axis.set(yscale="log", ylabel="weights kept", title="Conv-4 on CIFAR-10 at 1 %")
    axis.legend(frameon=False, ncols=2, fontsize=8)
    return figure


def tradeoff(found: list[Result]) -> Any:
    """Accuracy over multiply-adds for Conv-4 on CIFAR-10, with the Pareto front."""
    part = longest(where(found, model="conv4", data="cifar10", control=""))
    part = [r for r in part if r.method != "dense"]
    if len(part) < 2:
        return None
    figure, axis = figures.subplots(1, 1, figsize=(8, 5.5))
    methods = sorted({r.method for r in part})
    for result in part:
        mark, color = SCHEME_MARKS.get(result.scheme, "x"), f"C{methods.index(result.method)}"
        face = color if result.dropout else "none"
        axis.plot(
            result.multiply_adds / 1000, result.test, marker=mark, color=color, markerfacecolor=face, linestyle=""
        )
    front, best = [], -np.inf
    for result in sorted(part, key=lambda r: (r.multiply_adds, -r.test)):
        if result.test > best:
            front.append((result.multiply_adds / 1000, result.test))
            best = result.test
    axis.plot(*zip(*front, strict=True), "k-", linewidth=1, alpha=0.5, drawstyle="steps-post", zorder=0)
    for i, method in enumerate(methods):
        axis.plot([], [], "o", color=f"C{i}", label=paper.title(method))
    for scheme in sorted({r.scheme for r in part}):
        axis.plot([], [], marker=SCHEME_MARKS.get(scheme, "x"), color="k", linestyle="", label=scheme)
    axis.plot([], [], "ko", markerfacecolor="none", label="no dropout")
    axis.set(xscale="log", xlabel="thousand multiply-adds per image", ylabel="test accuracy, %")
    axis.set_title("Conv-4 on CIFAR-10; line: no other network is better at the same cost")
    axis.legend(frameon=False)
    return figure
