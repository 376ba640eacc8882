"""Methods side by side at equal training: NTT, gradual NTT and the baselines, over densities, schemes and seeds.

A comparison is one JSON file that grows by a case at a time: a killed comparison goes on where it stopped.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nttzoo import baselines, console, provenance, recipes, search
from nttzoo.data import Dataset
from nttzoo.errors import OptionError, RunError, UnknownName
from nttzoo.pruning import METHODS
from nttzoo.training import TrainConfig

EVEN = [name for name, method in METHODS.items() if method.even]  # alike under either scheme


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What is compared. `change` overrides values of the recipes, such as epochs or outputs.

    `train_epochs`, `dropout`: of the supervised phase, alike for all methods.
    """

    model: str
    data: str
    methods: tuple[str, ...]
    densities: tuple[float, ...]
    schemes: tuple[str, ...]
    seeds: tuple[int, ...]
    train_epochs: int
    change: dict[str, Any]
    dropout: bool = True

    def __post_init__(self) -> None:
        for method in self.methods:
            if method not in (*recipes.NAMES, *METHODS, "dense"):
                raise UnknownName("method", method, (*recipes.NAMES, *METHODS, "dense"))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        content = asdict(self)
        return {key: list(value) if isinstance(value, tuple) else value for key, value in content.items()}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> Comparison:
        """What `to_dict` gave."""
        values: Any = {key: tuple(value) if isinstance(value, list) else value for key, value in content.items()}
        return cls(**values)

    def config(self, method: str, seed: int) -> search.SearchConfig:
        """The search that finds all students of one method and seed at once."""
        # The fall of the density is the one thing in which the methods differ.
        change = {k: v for k, v in self.change.items() if method == "gradual" or k not in recipes.FALL_FIELDS}
        recipe = recipes.find(method, self.model, self.data).change(**change)
        names: dict[str, Any] = {"model": self.model, "data": self.data}
        return search.SearchConfig(**names, densities=self.densities, schemes=self.schemes, seed=seed, recipe=recipe)

    def folder(self, config: search.SearchConfig) -> str:
        """A name for the folder of one of the searches: says which values of the recipe were changed."""
        return "-".join([config.name, *(f"{key}={value}" for key, value in sorted(self.change.items()))])

    def cases(self) -> Iterator[dict[str, Any]]:
        """Every case: a method, a seed, and where they matter density and scheme."""
        for seed in self.seeds:
            for method in self.methods:
                if method == "dense":
                    yield {"method": method, "seed": seed}
                    continue
                for scheme in self.schemes[:1] if method in EVEN else self.schemes:
                    for density in self.densities:
                        yield {"method": method, "seed": seed, "scheme": scheme, "density": density}


def run(comparison: Comparison, dataset: Dataset, *, out: Path, runs: Path, **where: Any) -> dict[str, Any]:
    """Does the cases that the file `out` does not hold yet; searches keep their folders below `runs`.

    `where`: the options of `search.run` that say where data is and what to run on.
    """
    content = {"comparison": comparison.to_dict(), "cases": [], **provenance.origin()}
    if out.exists():
        content = provenance.read_json(out)
        if Comparison.from_dict(content["comparison"]) != comparison:
            raise RunError(f"{out} holds another comparison: {content['comparison']}. Choose another file with --out.")
    keys = ("method", "seed", "scheme", "density")
    done = [{key: case[key] for key in keys if key in case} for case in content["cases"]]
    for case in comparison.cases():
        if case not in done:
            content["cases"].append({**case, **_measure(comparison, case, dataset, runs, where)})
            provenance.write_json(out, content)
    return content


def _measure(
    comparison: Comparison, case: dict[str, Any], dataset: Dataset, runs: Path, where: dict[str, Any]
) -> dict[str, Any]:
    config = TrainConfig(epochs=comparison.train_epochs, dropout=comparison.dropout, seed=case["seed"])
    measured: dict[str, Any] = {}
    if case["method"] in recipes.NAMES:
        wanted = comparison.config(case["method"], case["seed"])
        summary = search.run(wanted, out=runs / comparison.folder(wanted), **where)
        name = search.Target(case["density"], case["scheme"]).name
        folder = summary.folder / "students" / name
        network, about = search.load_student(folder)
        trained = baselines.train_network(network, dataset, config, {"model": comparison.model})
        metrics = {"test_accuracy": trained.history.test_accuracy[-1], "train_epochs": config.epochs}
        search.save_student(folder / "trained", network, about | metrics)
        found = summary.content["students"][name]
        measured = {key: found[key] for key in ("kernel_before", "kernel_after", "target_after")}
        measured["search_steps"] = summary.content["steps"]
    else:
        pruned = {key: case[key] for key in ("density", "scheme") if key in case}
        trained = baselines.train_baseline(comparison.model, dataset, config, method=case["method"], **pruned)
    measured["validation_accuracy"] = trained.history.validation_accuracy[-1]
    measured["test_accuracy"] = trained.history.test_accuracy[-1]
    return {**measured, "train_seconds": round(sum(trained.history.seconds), 1)}


def table(content: dict[str, Any]) -> str:
    """Test accuracy per method, scheme and density: mean over seeds, lowest and highest if there are more."""
    groups: dict[tuple[Any, ...], dict[float, list[float]]] = {}
    for case in content["cases"]:
        row = groups.setdefault((case["method"], case.get("scheme", "")), {})
        row.setdefault(case.get("density", 1.0), []).append(case["test_accuracy"])
    if not groups:
        raise OptionError("the comparison has no cases yet.")
    densities = sorted({density for row in groups.values() for density in row})
    rows = []
    for (method, scheme), row in groups.items():
        cells = []
        for density in densities:
            values = [100 * value for value in row.get(density, [])]
            spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}" if values else "-")
        rows.append((f"{method} {scheme}".strip(), *cells))
    return console.table("test accuracy, %", ("method", *(f"{d:.6g}" for d in densities)), rows)
