"""Methods side by side at equal training: NTT, gradual NTT and the baselines, over densities, schemes and seeds.

A comparison is one JSON file that grows by a case at a time: a killed comparison resumes where it stopped, and methods
and seeds may be added later.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from threading import Lock
from typing import Any

from nttzoo import search
from nttzoo._util import console, lock, provenance, schema
from nttzoo._util.checks import check_seed
from nttzoo.data import Dataset
from nttzoo.errors import FileError, NttzooError, OptionError, RunError, UnknownName
from nttzoo.experiments import baselines, controls
from nttzoo.experiments.controls import CONTROLS
from nttzoo.search import recipes
from nttzoo.sparsity.density import check_density
from nttzoo.sparsity.pruning import METHODS
from nttzoo.sparsity.schemes import SCHEMES
from nttzoo.training import TrainConfig

UNIFORM = [name for name, method in METHODS.items() if method.uniform]
ALIKE = ("layerwise", "global")  # schemes under which the methods above do the same

Case = dict[str, Any]


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
    exclude: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("methods", "densities", "schemes", "seeds", "exclude", "controls"):
            values = getattr(self, name)
            if len(set(values)) < len(values):
                raise OptionError(f"{name} names something twice: {', '.join(map(str, values))}.")
        for density in self.densities:
            check_density(density)
        for scheme in self.schemes:
            SCHEMES[scheme]
        for control in self.controls:
            CONTROLS[control]
        for seed in self.seeds:
            check_seed(seed)
        if self.train_epochs < 1:
            raise OptionError(f"train_epochs is {self.train_epochs}; networks are compared after 1 epoch or more.")
        for method in self.methods:
            if method not in every_method():
                raise UnknownName("method", method, every_method())

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
        # What is asked of the fall of the density holds for the methods whose density falls.
        falls = "start_density" in recipes.VARIANTS[method]
        change = {k: v for k, v in self.change.items() if falls or k not in recipes.FALL_FIELDS}
        recipe = recipes.find(method, self.model, self.data).change(**change)
        names: dict[str, Any] = {"model": self.model, "data": self.data}
        return search.SearchConfig(**names, **self.pruned(), seed=seed, recipe=recipe)

    def pruned(self) -> dict[str, Any]:
        """What the students of one search are."""
        return {"densities": self.densities, "schemes": self.schemes, "exclude": self.exclude}

    def training(self, seed: int) -> TrainConfig:
        """The supervised phase, alike for all methods."""
        return TrainConfig(epochs=self.train_epochs, dropout=self.dropout, seed=seed)

    def folder(self, config: search.SearchConfig) -> str:
        """A name for the folder of one of the searches: says which values of the recipe were changed."""
        return "-".join([config.name, *(f"{key}={value}" for key, value in sorted(self.change.items()))])

    def extends(self, other: Comparison) -> bool:
        """Whether this is the other one with methods, seeds or controls added, or nothing."""
        grown = ("methods", "seeds", "controls")
        more = all(set(getattr(self, name)) >= set(getattr(other, name)) for name in grown)
        return more and replace(other, **{name: getattr(self, name) for name in grown}) == self

    def cases(self) -> Iterator[Case]:
        """Every case: a method, a seed, and where they matter density and scheme."""
        for seed in self.seeds:
            for method in self.methods:
                if method == "dense":
                    yield {"method": method, "seed": seed}
                    continue
                for scheme, density in product(schemes_of(method, self.schemes), self.densities):
                    case = {"method": method, "seed": seed, "scheme": scheme, "density": density}
                    yield case
                    yield from ({**case, "control": control} for control in self.controls)


def every_method() -> tuple[str, ...]:
    """All that can be compared."""
    return (*recipes.NAMES, *METHODS, "dense")


def schemes_of(method: str, schemes: Sequence[str]) -> list[str]:
    """The schemes under which a method does different things: random masks do the same under layerwise and global."""
    if method in METHODS and (own := METHODS[method].scheme):
        return [own]
    alike = [scheme for scheme in schemes if scheme in ALIKE] if method in UNIFORM else []
    return [scheme for scheme in schemes if scheme not in alike[1:]]


def run(
    comparison: Comparison, dataset: Dataset, *, out: Path, runs: Path, jobs: int = 1, **where: Any
) -> dict[str, Any]:
    """Does the cases that the file `out` does not hold yet: first all searches, then the trainings, `jobs` at a time.

    Searches keep their folders below `runs`. `where`: the options of `search.run` that say where data is and what to
    run on.
    """
    if jobs < 1:
        raise OptionError(f"jobs is {jobs}; it is how many trainings run side by side, 1 or more.")
    # The file is rewritten after each case: two processes would overwrite each other's.
    with lock.alone_with(out):
        return _run(comparison, dataset, out, runs, jobs, where)


def _run(
    comparison: Comparison, dataset: Dataset, out: Path, runs: Path, jobs: int, where: dict[str, Any]
) -> dict[str, Any]:
    content: dict[str, Any] = {"cases": [], "origins": []}
    if out.exists():
        content = read(out)
        if not comparison.extends(Comparison.from_dict(content["comparison"])):
            raise RunError(
                f"{out} holds another comparison: {content['comparison']}. Methods and seeds may be added to it, "
                "nothing else may change. Choose another file with --out."
            )
    missing = missing_cases(comparison, content)
    if not missing:
        return content
    order = list(comparison.cases())
    content = {"comparison": comparison.to_dict(), "cases": content["cases"], "origins": _origins(content)}
    found = _search(comparison, missing, runs, where)

    writing = Lock()

    def measure(case: Case) -> None:
        measured = {**case, **_train(comparison, case, found, dataset, progress=jobs == 1)}
        measured["origin"] = len(content["origins"]) - 1
        with writing:
            content["cases"] = sorted([*content["cases"], measured], key=lambda known: order.index(_case_of(known)))
            provenance.write_json(out, content)

    if jobs > 1:
        _side_by_side(measure, missing, jobs)
    else:
        for case in missing:
            measure(case)
    return content


def read(path: Path) -> dict[str, Any]:
    """The content of a comparison's file."""
    content = schema.read(path, schema.ComparisonFile, what="a comparison: `nttzoo compare` writes them")
    try:
        Comparison.from_dict(content["comparison"])
    except (TypeError, NttzooError) as error:
        raise FileError(path, f"holds no comparison that this version of nttzoo can make: {error}") from error
    origins = content.get("origins")
    if origins is not None and any(case.get("origin", 0) >= max(len(origins), 1) for case in content["cases"]):
        raise FileError(path, "has cases whose origin it does not tell")
    return content


def missing_cases(comparison: Comparison, content: dict[str, Any]) -> list[Case]:
    """The cases that are still to be measured."""
    done = [_case_of(case) for case in content["cases"]]
    return [case for case in comparison.cases() if case not in done]


def origin_of(content: dict[str, Any], case: Case) -> dict[str, Any]:
    """The command, date, versions and machine that made a case of a comparison."""
    origins = content.get("origins")
    return origins[case.get("origin", 0)] if origins else content  # an older file has one, at its top


def _origins(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of the earlier cases, and now's."""
    now = provenance.origin()
    earlier = content.get("origins", [{key: content[key] for key in now if key in content}])
    return earlier if now in earlier[-1:] else [*earlier, now]


def _case_of(measured: Case) -> Case:
    """Which case was measured, without the measurements."""
    return {key: measured[key] for key in ("method", "seed", "scheme", "density", "control") if key in measured}


def _search(
    comparison: Comparison, cases: list[Case], runs: Path, where: dict[str, Any]
) -> dict[tuple[str, int], search.Summary]:
    """The searches that the cases need, by method and seed; finished ones are only read."""
    needed = dict.fromkeys((case["method"], case["seed"]) for case in cases if case["method"] in recipes.NAMES)
    configs = {key: comparison.config(*key) for key in needed}
    return {key: search.run(config, out=runs / comparison.folder(config), **where) for key, config in configs.items()}


def _side_by_side(measure: Callable[[Case], None], cases: list[Case], jobs: int) -> None:
    """Measures in threads: one small network alone cannot use all cores."""
    with console.progress_bar() as bar, ThreadPoolExecutor(jobs) as pool:
        task = bar.add_task("networks trained", total=len(cases), note="")
        futures = [pool.submit(measure, case) for case in cases]
        try:
            for future in as_completed(futures):
                future.result()
                bar.update(task, advance=1)
        finally:
            if not all(future.done() for future in futures):
                bar.update(task, note="stopping: the trainings that have begun run to their end")
            pool.shutdown(cancel_futures=True)


def _train(
    comparison: Comparison,
    case: Case,
    found: dict[tuple[str, int], search.Summary],
    dataset: Dataset,
    *,
    progress: bool,
) -> dict[str, Any]:
    """Trains the network of one case; a student's trained weights are kept beside it."""
    config = replace(comparison.training(case["seed"]), progress=progress)
    measured: dict[str, Any] = {}
    made: dict[str, Any] = {"method": case["method"]}
    made |= {key: case[key] for key in ("density", "scheme") if key in case} | {"exclude": comparison.exclude}
    if case["method"] in recipes.NAMES:
        summary = found[case["method"], case["seed"]]
        name = search.Target(case["density"], case["scheme"]).name
        student = summary.content["students"][name]
        measured = {key: student[key] for key in ("kernel_before", "kernel_after", "target_after")}
        measured["search_steps"] = summary.content["steps"]
        # Students of one search share its time.
        seconds = summary.content["seconds_of_last_session"] / len(summary.content["students"])
        folder = summary.folder / "students" / name
        if "control" not in case:
            trained = baselines.train_student(folder, dataset, config)
        else:
            trained = _train_control(comparison, case, search.load_student(folder)[0], dataset, config)
    else:
        network = baselines.make_network(comparison.model, dataset, seed=case["seed"])
        began = time.perf_counter()
        baselines.prune_network(network, dataset, seed=case["seed"], **made)
        seconds = time.perf_counter() - began
        if "control" in case:
            trained = _train_control(comparison, case, network, dataset, config)
        else:
            trained = baselines.train_network(network, dataset, config, {})
    measured["method_seconds"] = round(seconds, 2)
    measured["validation_accuracy"] = trained.history.validation_accuracy[-1]
    measured["test_accuracy"] = trained.history.test_accuracy[-1]
    return {**measured, "train_seconds": round(sum(trained.history.seconds), 1)}


def _train_control(
    comparison: Comparison, case: Case, network: Any, dataset: Dataset, config: TrainConfig
) -> baselines.Trained:
    """Trains a network with a part of it replaced."""
    dense = baselines.make_network(comparison.model, dataset, seed=case["seed"])
    controls.apply(network, case["control"], dense=dense, rngs=case["seed"])
    return baselines.train_network(network, dataset, config, {})


def table(content: dict[str, Any]) -> str:
    """Test accuracy per method, scheme and density: mean over seeds, lowest and highest if there are more.

    The last column is what the method itself costs, in seconds, before any training.
    """
    groups: dict[tuple[Any, ...], dict[float, list[float]]] = {}
    costs: dict[tuple[Any, ...], list[float]] = {}
    for case in content["cases"]:
        key = (case["method"], case.get("scheme", ""), case.get("control", ""))
        groups.setdefault(key, {}).setdefault(case.get("density", 1.0), []).append(case["test_accuracy"])
        costs.setdefault(key, []).extend([case["method_seconds"]] if "method_seconds" in case else [])
    if not groups:
        raise OptionError("the comparison has no cases yet.")
    densities = sorted({density for row in groups.values() for density in row})
    rows = []
    for key, row in groups.items():
        cells = []
        for density in densities:
            values = [100 * value for value in row.get(density, [])]
            spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}" if values else "-")
        seconds = f"{statistics.mean(costs[key]):.1f}" if costs[key] else "-"
        rows.append((" ".join(part for part in key if part), *cells, seconds))
    return console.table("test accuracy, %", ("method", *(f"{d:.6g}" for d in densities), "cost, s"), rows)
