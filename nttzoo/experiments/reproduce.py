"""`reproduce`: runs the cases of an experiment that have no result yet. If killed, it resumes where it was.

Every case is independent and has a result file of its own, so several processes, and machines that share a disk, may
work on one plan; a case that another process is using is left to it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from flax import nnx

from nttzoo import data, search
from nttzoo._util import console, lock, provenance
from nttzoo.data import Dataset
from nttzoo.errors import BusyError, OptionError
from nttzoo.experiments import baselines, estimates, results, students
from nttzoo.experiments.cases import Case
from nttzoo.experiments.students import Source

Say = Callable[[str], None]


@dataclass(frozen=True)
class Workplace:
    """Where results go, where finished searches are, and where new ones are kept.

    `runs`: folders of searches, or of one search each; new searches and trained weights go into the first.
    """

    results: Path
    runs: tuple[Path, ...] = (Path("runs"),)
    search: bool = True  # whether to search for what is missing
    where: dict[str, Any] = field(default_factory=dict)  # where data is: options of `data.load`

    def dataset(self, name: str) -> Dataset:
        """The data set, loaded once."""
        return _load(name, tuple(sorted(self.where.items())))


@cache
def _load(name: str, where: tuple[tuple[str, Any], ...]) -> Dataset:
    return data.load(name, **dict(where))


def select(cases: Sequence[Case], only: Sequence[str]) -> list[Case]:
    """The cases whose names match one of the globs; all, if there is no glob."""
    chosen = [case for case in cases if not only or any(fnmatchcase(case.name, pattern) for pattern in only)]
    if cases and not chosen:
        raise OptionError(f"no case matches {', '.join(only)}. `--dry-run` lists them; one is {cases[0].name!r}.")
    return chosen


def run(cases: Sequence[Case], place: Workplace, *, say: Say = print) -> list[Case]:
    """Runs what has no result yet, in order; returns the cases that are left to other processes or have no student."""
    times = estimates.Estimates(place.results)
    left: list[Case] = []
    todo = [case for case in cases if not case.done(place.results)]
    say(f"{len(cases)} cases, {len(cases) - len(todo)} done.")
    for number, case in enumerate(todo, 1):
        began, student = time.monotonic(), _known(case, place)
        note = _attempt(case, place, todo[number:])
        if note is not None:
            left.append(case)
            say(f"[{number}/{len(todo)}] {case.name}: {note}")
            continue
        result = results.read_one(case.file(place.results))
        times.learn(case, time.monotonic() - began, student=student)
        rest = sum(seconds for _, seconds in _outlook(todo[number:], place, times))
        accuracy = f"{result['test_accuracy']:.2%} in {estimates.duration(time.monotonic() - began)}"
        if result["engine"] == "jax" and case.method != "dense":
            accuracy += f" (in JAX, {result['history']['engine_note']})"
        say(f"[{number}/{len(todo)}] {case.name}: {accuracy}; about {estimates.duration(rest)} left")
    return left


def dry_run(cases: Sequence[Case], place: Workplace) -> str:
    """Every case, what it still needs, and about how long that takes."""
    outlook = _outlook(cases, place, estimates.Estimates(place.results))
    rows = [
        (case.name, what, "" if what == "done" else estimates.duration(seconds))
        for case, (what, seconds) in zip(cases, outlook, strict=True)
    ]
    rows.append(("total", "", estimates.duration(sum(seconds for _, seconds in outlook))))
    return console.table("", ("case", "to do", "time, about"), rows, total=True)


def _outlook(cases: Sequence[Case], place: Workplace, times: estimates.Estimates) -> list[tuple[str, float]]:
    """What is to be done for each case, and about how many seconds it takes; a search serves all cases that need it."""
    searched: set[str] = set()
    found = []
    for case in cases:
        if case.done(place.results):
            found.append(("done", 0.0))
            continue
        student = not case.searched or case.student in searched or _known(case, place)
        searched |= {case.student}
        found.append(("train" if student else "search, train", times.seconds(case, student=student)))
    return found


def _known(case: Case, place: Workplace) -> bool:
    return case.searched and students.find(case.search(), place.runs) is not None


def _attempt(case: Case, place: Workplace, later: Sequence[Case]) -> str | None:
    """Runs a case; or says why not. A search for it also finds the students of `later` cases that share its teacher."""
    try:
        with lock.alone_with(case.file(place.results)):
            if case.done(place.results):
                return None
            source = _student(case, place, later) if case.searched else None
            if case.searched and source is None:
                return "its student has not been searched for"
            _train(case, place, source)
            return None
    except BusyError:
        return "another process is using it"


def _student(case: Case, place: Workplace, later: Sequence[Case]) -> Source | None:
    """The student of a case: found, or searched for now."""
    if (source := students.find(case.search(), place.runs)) or not place.search:
        return source
    others = [other for other in later if other.searched and not _known(other, place)]
    return students.search_for(case, others, place.runs[0], **place.where)


def _train(case: Case, place: Workplace, source: Source | None) -> None:
    """Trains the network of a case and writes its result.

    The weights of students, before and after, are kept with the searches: what is published are these.
    """
    dataset = place.dataset(case.data)
    network = students.network(case, dataset, source)
    start = nnx.clone(network)
    settings: dict[str, Any] = {"model": case.model, "method": case.method, "scheme": case.scheme}
    unfinished = place.runs[0] / "training" / case.name
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    trained = baselines.train_network(network, dataset, case.training, settings, checkpoint=unfinished)
    content = trained.to_dict()
    result = {
        "case": case.to_dict(),
        "test_accuracy": content["test_accuracy"],
        "student": source.about if source else None,
        "layers": [asdict(layer) for layer in trained.density.layers],
        "speedup": content["speedup"],
        "engine": trained.history.engine,
        "history": content["history"],
        **provenance.origin(),
    }
    if source and not case.control:
        about = {"architecture": case.model, "data": case.data, "density": case.density, "scheme": case.scheme}
        about |= {"recipe": case.method, "seed": case.seed}
        folder = place.runs[0] / "trained" / case.name
        search.save_student(folder, start, about)
        about |= {"train_epochs": case.training.epochs, "test_accuracy": content["test_accuracy"]}
        search.save_student(folder / "trained", network, about)
    provenance.write_json(case.file(place.results), result)
    shutil.rmtree(unfinished, ignore_errors=True)
