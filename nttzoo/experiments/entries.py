"""From results of `reproduce` to entries of the zoo: which students to publish, and what is known of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from nttzoo import search, zoo
from nttzoo.data import Dataset
from nttzoo.errors import RunError
from nttzoo.experiments import comparison, results
from nttzoo.experiments.cases import Case
from nttzoo.experiments.publish import TRAINING, write_entries
from nttzoo.experiments.results import Result
from nttzoo.search import recipes
from nttzoo.training import TrainConfig

CURVES = ("train_loss", "train_accuracy", "validation_accuracy", "test_accuracy")


def publish(
    folder: Path, load: Callable[[str], Dataset], *, runs: Sequence[Path], home: Path, only: Sequence[str] = ()
) -> list[str]:
    """Writes one entry per network of which `nttzoo reproduce` found and trained a student; returns the names.

    Of several seeds, recipes and trainings the one with the best validation accuracy is taken. `folder` holds the
    results, `runs` the weights. `only`: globs over the names of the entries. `load` gives a data set by its name.
    """
    found = results.read(folder)
    chosen = [
        (best, student)
        for best, student in choose(found, runs)
        if not only or any(fnmatchcase(_name(best), pattern) for pattern in only)
    ]
    if not chosen:
        raise RunError(f"{folder} and {', '.join(map(str, runs))} hold no trained student to publish.")
    names: list[str] = []
    for data, group in results.grouped([best for best, _ in chosen], lambda r: r.data).items():
        dataset = load(data)
        entries = [(metrics(best, found, dataset), student) for best, student in chosen if best in group]
        names += write_entries(entries, dataset, home)
    return names


def choose(found: Sequence[Result], runs: Sequence[Path]) -> list[tuple[Result, Path]]:
    """For each model, data set, density and scheme the student with the best validation accuracy, and its folder."""
    plain = [result for result in found if not result.control and result.method in recipes.NAMES]
    chosen = []
    for group in results.grouped(plain, lambda r: (r.model, r.data, r.scheme, r.density)).values():
        kept = [(result, folder) for result in group if (folder := _folder(result, runs))]
        if kept:
            chosen.append(max(kept, key=lambda pair: pair[0].content["history"]["validation_accuracy"][-1] or 0.0))
    return chosen


def metrics(best: Result, found: Sequence[Result], dataset: Dataset) -> dict[str, Any]:
    """What is known of an entry: the student, and all methods that were trained in the same way."""
    content, case = best.content, _case(best)
    if content["speedup"]["without_dead"] is None:
        raise RunError(f"{best.name} is not worth publishing: no path leads from its inputs to its outputs.")
    history = content["history"]
    plain = [r for r in found if r.model == best.model and r.data == best.data and not r.control]
    alike = [r for r in results.with_shorter(plain) if _same(r, best)]
    return {
        "format": zoo.FORMAT,
        "name": _name(best),
        "architecture": best.model,
        "dataset": best.data,
        "density": best.density,
        "scheme": best.scheme,
        "recipe": asdict(case.search().recipe),
        "seed": best.seed,
        "search_steps": content["student"]["steps"],
        "train": {key: best.training[key] for key in TRAINING},
        "kernel_before": content["student"]["kernel_before"],
        "kernel_after": content["student"]["kernel_after"],
        "chosen": {
            "test_accuracy": content["test_accuracy"],
            "validation_accuracy": history["validation_accuracy"][-1],
        },
        "candidates": len([r for r in alike if r.method in recipes.NAMES and r.scheme == best.scheme]),
        "compared": _compared(alike, best.scheme),
        "layers": content["layers"],
        "speedup": content["speedup"],
        "history": {name: [None if v is None else round(v, 5) for v in history[name]] for name in CURVES},
        **dataset.input_spec.to_dict(),
        "licence": dataset.license,
        **{key: content[key] for key in ("command", "date", "versions", "machine")},
    }


def _name(result: Result) -> str:
    return f"{result.model}-{result.data}-{search.Target(result.density, result.scheme).name}"


def _folder(result: Result, runs: Sequence[Path]) -> Path | None:
    """Where the weights of a result are, if they are those of the result."""
    for folder in (run / "trained" / result.name for run in runs):
        if (folder / "trained" / "model.json").exists():
            _, about = search.load_student(folder / "trained")
            if about.get("test_accuracy") == result.content["test_accuracy"]:
                return folder
    return None


def _case(result: Result) -> Case:
    case = dict(result.content["case"])
    how = {key: value for key, value in case.pop("training").items() if key != "seed"}
    return Case(**case, training=TrainConfig(**how))


def _same(one: Result, best: Result) -> bool:
    """Whether a network was trained like the best one, and is as sparse; random masks are alike in two schemes."""
    if one.name.split("/")[1] != best.name.split("/")[1]:
        return False
    if one.method == "dense":
        return True
    uniform = one.method in comparison.UNIFORM and {one.scheme, best.scheme} <= set(comparison.ALIKE)
    return one.density == best.density and (one.scheme == best.scheme or uniform)


def _compared(alike: Sequence[Result], scheme: str) -> list[dict[str, Any]]:
    """Test accuracies by method."""
    rows = []
    for method, group in results.grouped(alike, lambda r: r.method).items():
        uniform = method in comparison.UNIFORM and scheme in comparison.ALIKE
        own = "-" if method == "dense" else "either" if uniform else scheme
        accuracies = [result.content["test_accuracy"] for result in group]
        rows.append({"method": method, "scheme": own, "test_accuracy": accuracies})
    # Searches first, as in comparisons.
    return sorted(rows, key=lambda row: row["method"] not in recipes.NAMES)
