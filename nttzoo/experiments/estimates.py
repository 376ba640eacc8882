"""About how long a case takes: from results of the same kind on this machine, or from a table."""

from __future__ import annotations

import statistics
from pathlib import Path

from nttzoo._util import provenance
from nttzoo.experiments import results
from nttzoo.experiments.cases import Case
from nttzoo.search.config import Plan

# Seconds per epoch of 60,000 images: some for every network, and some times the density (results/bench_train.json).
EPOCH = {"lenet300": (0.1, 1.0), "lenet5": (0.3, 10.0), "conv4": (3.0, 190.0)}
# Seconds per step and output of a search (results/bench_search.json).
STEP = {"lenet300": 0.00044, "lenet5": 0.04, "conv4": 0.41, "gru": 0.03, "ds_cnn": 0.33, "resnet20": 0.77}
OUTPUTS = 10
IMAGES = {"mnist": 60_000, "fashion_mnist": 60_000, "cifar10": 50_000, "svhn": 73_257, "mnist5k": 5_000}


class Estimates:
    """Times learned from results in a folder, and from those that follow."""

    def __init__(self, folder: Path):
        self.epochs: dict[tuple[str, ...], list[float]] = {}
        machine = provenance.origin()["machine"]
        for file in folder.glob("*/*/seed*.json"):
            content = results.read_one(file)
            if content["machine"] == machine and content["history"]["seconds"]:
                key = _kind(content["case"]["model"], content["case"]["data"], content["case"]["density"])
                self._add(key, statistics.median(content["history"]["seconds"]))
        self.pace: list[float] = []  # how much longer cases took than they were estimated

    def _add(self, key: tuple[str, ...], seconds: float) -> None:
        for kind in (key, key[:1]):
            self.epochs.setdefault(kind, []).append(seconds)

    def seconds(self, case: Case, *, student: bool) -> float:
        """About how long a case takes; `student`: whether its student is there already."""
        return self._plain(case, student) * (statistics.median(self.pace) if self.pace else 1.0)

    def learn(self, case: Case, seconds: float, *, student: bool = True) -> None:
        """A case has taken so long."""
        if case.training.epochs:
            self.pace = [*self.pace, seconds / max(self._plain(case, student), 1e-3)][-10:]

    def _plain(self, case: Case, student: bool) -> float:
        epoch = next((statistics.median(self.epochs[kind]) for kind in self._kinds(case) if kind in self.epochs), None)
        if epoch is None:
            same, dense = EPOCH.get(case.model, (5.0, 60.0))
            epoch = (same + dense * case.density) * IMAGES.get(case.data, 60_000) / 60_000
        training = case.training.epochs * epoch
        return training if student or not case.searched else training + _search_seconds(case)

    @staticmethod
    def _kinds(case: Case) -> list[tuple[str, ...]]:
        return [_kind(case.model, case.data, case.density), (case.model,)]


def _kind(model: str, data: str, density: float) -> tuple[str, ...]:
    return model, data, f"{density:g}"


def _search_seconds(case: Case) -> float:
    recipe = case.search().recipe
    steps = Plan.of(recipe, IMAGES.get(case.data, 60_000)).steps
    return steps * STEP.get(case.model, 0.1) * (recipe.outputs or OUTPUTS)


def duration(seconds: float) -> str:
    """A time in its most readable unit: "40 s", "12 min", "3.5 h"."""
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
