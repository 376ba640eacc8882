"""Searches and trainings of the cases that are still missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from typing import Any

from nttzoo import search
from nttzoo._util import console, files, lock, provenance
from nttzoo.data import Dataset
from nttzoo.errors import OptionError, RunError
from nttzoo.experiments import baselines, controls
from nttzoo.experiments.comparison.plan import Case, Comparison
from nttzoo.experiments.comparison.results import case_of, missing_cases, origins_with_now, read
from nttzoo.search import recipes
from nttzoo.training import TrainConfig


def run(
    comparison: Comparison, dataset: Dataset, *, out: Path, runs: Path, jobs: int = 1, **where: Any
) -> dict[str, Any]:
    """Does the cases that the file `out` does not hold yet: first all searches, then the trainings, `jobs` at a time.

    Searches keep their folders below `runs`. `where`: the options of `search.run` that say where data is and what to
    run on.
    """
    if jobs < 1:
        raise OptionError(f"jobs is {jobs}; it must be the number of concurrent trainings, 1 or more.")
    # The file is rewritten after each case: two processes would overwrite each other's.
    with lock.alone_with(out):
        files.check_folder(runs)
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
    content = {"comparison": comparison.to_dict(), "cases": content["cases"], "origins": origins_with_now(content)}
    found = _search(comparison, missing, runs, where)

    writing = Lock()

    def measure(case: Case) -> None:
        measured = {**case, **_train(comparison, case, found, dataset, progress=jobs == 1)}
        measured["origin"] = len(content["origins"]) - 1
        with writing:
            content["cases"] = sorted([*content["cases"], measured], key=lambda known: order.index(case_of(known)))
            provenance.write_json(out, content)

    if jobs > 1:
        _side_by_side(measure, missing, jobs)
    else:
        for case in missing:
            measure(case)
    return content


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
    measured["layers"] = [asdict(layer) for layer in trained.density.layers]
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
