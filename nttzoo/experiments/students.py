"""Where the sparse network of a case comes from: a finished search, the zoo, or a search now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

from nttzoo import search, zoo
from nttzoo._util import files, provenance
from nttzoo.data import Dataset
from nttzoo.errors import NttzooError
from nttzoo.experiments import controls
from nttzoo.experiments.baselines import make_network
from nttzoo.experiments.cases import Case
from nttzoo.search import SearchConfig

DISTANCES = ("kernel_before", "kernel_after", "target_before", "target_after")


class Source(NamedTuple):
    """A student's network, and what a result says about it."""

    model: Any
    about: dict[str, Any]


def network(case: Case, dataset: Dataset, source: Source | None) -> Any:
    """The network of a case before training; `source` is the student of a searched one."""
    if source is not None:
        made = source.model
    else:
        pruned: dict[str, Any] = {"method": case.method, "density": case.density, "scheme": case.scheme}
        made = make_network(case.model, dataset, **pruned, seed=case.seed)
    if case.control:
        dense = make_network(case.model, dataset, seed=case.seed)
        controls.apply(made, case.control, dense=dense, rngs=case.seed)
    return made


def find(config: SearchConfig, runs: Sequence[Path]) -> Source | None:
    """A student with exactly this search behind it: in one of the folders of runs, or in the zoo."""
    (target,) = config.targets
    for folder in _finished(runs):
        try:
            summary = provenance.read_json(folder / "summary.json")
            if _matches(config, summary["config"]) and target.name in summary["students"]:
                model, _ = search.load_student(folder / "students" / target.name)
                return Source(model, _about(folder.name, summary, target.name))
        except (NttzooError, KeyError, TypeError):
            continue  # of another version, or damaged: not ours to use
    return _published(config)


def search_for(case: Case, others: Sequence[Case], runs: Path, **where: Any) -> Source:
    """Searches for the student of a case now, and in the same run for those of `others` that can share its teacher.

    A run that was begun earlier and includes the student is resumed. `where`: options of `data.load`.
    """
    config = case.search()
    (target,) = config.targets
    joint = _begun(config, runs)
    if joint is None:
        densities = {case.density, *(other.density for other in others if _shares_teacher(case, other))}
        joint = replace(config, densities=tuple(sorted(densities)))
    summary = search.run(joint, out=runs / case.run_folder(joint.densities), **where)
    model, _ = search.load_student(summary.folder / "students" / target.name)
    return Source(model, _about(summary.folder.name, summary.content, target.name))


def _shares_teacher(one: Case, other: Case) -> bool:
    """Whether two networks differ in density only, and so have the same teacher and the same batches."""
    return one.run_folder([1.0]) == other.run_folder([1.0])


def _begun(config: SearchConfig, runs: Path) -> SearchConfig | None:
    """The config of an unfinished run that includes this search."""
    for file in sorted(runs.glob("*/config.json")):
        if (file.parent / "summary.json").exists():
            continue
        try:
            theirs = files.read_json(file)
            if _matches(config, theirs) and len(theirs["schemes"]) == 1:
                return replace(config, densities=tuple(theirs["densities"]))
        except (NttzooError, KeyError, TypeError):
            continue
    return None


def _finished(runs: Sequence[Path]) -> list[Path]:
    """The folders of finished searches: those given, and those in the folders given."""
    return [file.parent for folder in runs for file in (folder / "summary.json", *sorted(folder.glob("*/summary.json")))
            if file.exists()]  # fmt: skip


def _matches(config: SearchConfig, theirs: dict[str, Any]) -> bool:
    """Whether a run's students include this config's; what is None, or was not known yet, is the same."""
    ours = json.loads(json.dumps(config.to_dict()))
    same = all(ours[key] == theirs[key] for key in ("model", "data", "seed")) and not theirs.get("exclude")
    recipes = [{**SearchConfig.defaults()["recipe"], **recipe} for recipe in (ours["recipe"], theirs["recipe"])]
    (density,), (scheme,) = ours["densities"], ours["schemes"]
    return same and recipes[0] == recipes[1] and density in theirs["densities"] and scheme in theirs["schemes"]


def _about(folder: str, summary: dict[str, Any], name: str) -> dict[str, Any]:
    student = summary["students"][name]
    return {"run": folder, "steps": summary["steps"], **{key: student[key] for key in DISTANCES}}


def _published(config: SearchConfig) -> Source | None:
    (target,) = config.targets
    name = f"{config.model}-{config.data}-{target.name}"
    if name not in zoo.list_models():
        return None
    metrics = zoo.info(name).metrics
    published = {**SearchConfig.defaults()["recipe"], **metrics["recipe"]}
    if metrics["seed"] != config.seed or published != asdict(config.recipe):
        return None
    about = {key: metrics[key] for key in ("kernel_before", "kernel_after")}
    return Source(zoo.load(name), {"published": name, "steps": metrics["search_steps"], **about})
