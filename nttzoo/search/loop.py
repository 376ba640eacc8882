"""`transfer`: the search itself, for any model and images; and what it found."""

from __future__ import annotations

import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Num

from nttzoo._util import console, provenance
from nttzoo._util.checks import check_callable, check_count, check_flag, check_instance, check_model, check_number
from nttzoo._util.chunking import ChunkTimer
from nttzoo._util.hosts import is_first, together
from nttzoo.checkpoint import check_free_space
from nttzoo.errors import DataError, Interrupted, ShapeError, TrainingError
from nttzoo.search.config import EVALUATION_IMAGES, Plan, SearchConfig, Target
from nttzoo.search.devices import agreed, make_mesh
from nttzoo.search.peers import failing_together
from nttzoo.search.run_folder import Journal
from nttzoo.search.state import LossSums, States
from nttzoo.search.students import Preprocess, Students

SAVE_SECONDS = 60.0
EVALUATIONS = 20


@dataclass(frozen=True)
class Student:
    """A sparse network in evaluation mode, and its distances from the teacher on images held out, if any are.

    "Before" is the pruned teacher at the same density, whatever density the search began with.
    """

    target: Target
    model: nnx.Module
    kernel_before: float
    kernel_after: float
    target_before: float
    target_after: float


@dataclass(frozen=True)
class Found:
    """What a search found, and its reports: one dictionary per `mask_every` steps."""

    teacher: nnx.Module
    students: tuple[Student, ...]
    plan: Plan
    reports: list[dict[str, Any]]
    evaluation: Any  # the standardized images on which distances are measured

    def __repr__(self) -> str:
        columns = ("student", "kernel distance", "before", "output distance", "before")
        rows = [
            (
                one.target.name,
                *(f"{x:.4g}" for x in (one.kernel_after, one.kernel_before)),
                *(f"{x:.4g}" for x in (one.target_after, one.target_before)),
            )
            for one in self.students
        ]
        title = f"{len(self.students)} students of {type(self.teacher).__name__} after {self.plan.steps:,} steps"
        return console.table(title, columns, rows)


@failing_together()
def transfer(
    teacher: nnx.Module,
    images: Num[np.ndarray, "n ..."],
    config: SearchConfig,
    *,
    preprocess: Preprocess | None = None,
    devices: int | None = None,
    journal: Journal | None = None,
    save_every: float = SAVE_SECONDS,
    progress: bool = True,
) -> Found:
    """Finds sparse students of a teacher on unlabeled images by Neural Tangent Transfer.

    Args:
      teacher: any NNX model with outputs [n, o]; it is not changed.
      images: [n, ...].
      config: densities, schemes, seed and recipe.
      preprocess: turns a batch of images into what the model takes, on the device (default: nothing).
      devices: number of devices that share each batch (default: all).
      journal: keeps the run in a folder, so that it can be resumed after an interruption (default: nothing is kept).
      save_every: seconds between saved states of a journal.
      progress: whether to show a progress bar.

    Returns:
      The students and their distances from the teacher; `print` shows them as a table.

    Raises:
      ShapeError: if the images do not fit the teacher.
      DensityError: if a density would leave a layer without weights.
      TrainingError: if the loss stops being finite.

    Example:
      >>> found = nttzoo.search.transfer(teacher, images, nttzoo.search.SearchConfig(densities=(0.05,), recipe=recipe))
      >>> nttzoo.save(found.students[0].model, "mine")
    """
    check_model("teacher", teacher)
    check_instance("config", config, SearchConfig)
    check_number("save_every", save_every, "the seconds between saved states, 0 or more", 0)
    check_flag("progress", progress)
    if preprocess is not None:
        check_callable("preprocess", preprocess)
    if devices is not None:
        check_count("devices", devices)
    if journal is not None:
        check_instance("journal", journal, Journal)
    journal = journal or Journal()
    mesh = make_mesh(devices, config.recipe.batch_size)
    students, plan = prepare(teacher, images, config, preprocess, mesh)
    state = students.start()
    # Where a density falls, the search starts denser than it ends; what is to be compared is alike in density.
    sparse = state if config.recipe.start_density is None else students.start(density_at=plan.steps)
    # An unfitting config was refused before: it leaves no folder behind.
    journal.claim(config.to_dict(), config.defaults() | config.own)
    before = students.evaluate(sparse)
    state, step = journal.resume(state)
    _compare_surroundings(journal, students)
    if folder := journal.folder:
        # Two states are kept while a third one is written; a resumed run has two already.
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        together(lambda: check_free_space(folder, size if step else 3 * size))
    state = _run(students, state, step, journal, save_every, progress and is_first())
    after = students.evaluate(state)
    found = tuple(
        Student(target, students.model(one), old[1], new[1], old[0], new[0])
        for target, one, old, new in zip(config.targets, state, before, after, strict=True)
    )
    return Found(students.teacher, found, plan, journal.lines, np.asarray(students.evaluation))


def prepare(
    teacher: nnx.Module, images: np.ndarray, config: SearchConfig, preprocess: Preprocess | None, mesh: Mesh | None
) -> tuple[Students, Plan]:
    """Checks the images, holds some of them out, and makes the students' machinery."""
    images = np.asarray(images)
    if images.ndim < 2 or not len(images):
        raise ShapeError(f"images must be an array [n, ...] with n > 0; got shape {list(images.shape)}.")
    if np.issubdtype(images.dtype, np.floating) and not np.isfinite(images).all():
        raise DataError("the images hold NaN or infinite values.")
    plan = Plan.of(config.recipe, len(images))
    plan.check_fall(config.densities)
    order = np.random.default_rng([config.seed, 2]).permutation(len(images))
    held, searched = np.split(order, [plan.held_out])
    evaluation = images[held] if plan.held_out else images[searched[:EVALUATION_IMAGES]]
    nothing: Preprocess = lambda batch: batch  # noqa: E731
    return Students(teacher, images[searched], evaluation, config, plan, preprocess or nothing, mesh), plan


def _compare_surroundings(journal: Journal, students: Students) -> None:
    """Warns if the run is resumed with another number of devices or another version of the code."""
    if not journal.lines or not is_first():
        return
    devices, code = (journal.lines[-1].get(key) for key in ("devices", "code"))
    effect = "so the result may differ in the last bits"
    if devices != students.devices:
        warnings.warn(
            f"this run had {devices} device(s) and continues with {students.devices}, which round sums in another "
            f"order, {effect}.",
            stacklevel=3,
        )
    if code != provenance.code_hash():
        warnings.warn(
            f"this run began with another version of nttzoo's code ({code}, now {provenance.code_hash()}), {effect} "
            "or more. --fresh starts over.",
            stacklevel=3,
        )


def _run(students: Students, state: States, step: int, journal: Journal, save_every: float, progress: bool) -> States:
    """All steps from `step` on, in chunks; between them reports, mask updates, checkpoints and signal handling."""
    plan, timer, saved = students.plan, ChunkTimer(), time.monotonic()
    with _listening() as signals, console.progress_bar(show=progress) as bar:
        task = bar.add_task("search", total=plan.steps, completed=step, note="")
        if step == 0 and not journal.lines:
            _report(students, state, 0, journal)
        while step < plan.steps:
            due = time.monotonic() - saved > save_every
            stopping, chunk, due = agreed(bool(signals), timer.chunk, due)
            if stopping or due:
                journal.save(step, state)
                saved = time.monotonic()
            if stopping:
                raise Interrupted(_goodbye(step, plan.steps, journal), signals[0] if signals else signal.SIGTERM)
            stop = min(step + chunk, plan.next_event(step))
            timer.begin()
            moved = students.advance(state, step, stop)
            if _broken(moved):
                _explain(students, state, step, stop, journal)
            timer.done(stop - step)
            state, step = moved, stop
            bar.update(task, completed=step)
            if step == plan.next_event(step - 1):
                state, note = _event(students, state, step, journal)
                bar.update(task, note=note)
        journal.save(step, state)
    return state


def _event(students: Students, state: States, step: int, journal: Journal) -> tuple[States, str]:
    """A report, and, at the planned steps, new masks."""
    line = _report(students, state, step, journal)
    state = students.reported(state)
    if students.plan.refreshes_at(step):
        state = students.refresh(state, step)
    first = next(iter(line["students"].values()))
    note = f"kernel {first['kernel']:.4g}  target {first['target']:.3g}  churn {first['churn']}"
    return state, note if len(line["students"]) == 1 else f"{note} (first of {len(line['students'])})"


def _report(students: Students, state: States, step: int, journal: Journal) -> dict[str, Any]:
    """One line of metrics: means since the last report, and now and then the distances on held-out images."""
    plan, recipe = students.plan, students.recipe
    events = -(-plan.steps // recipe.mask_every)
    evaluates = step in (0, plan.steps) or (step // recipe.mask_every) % max(events // EVALUATIONS, 1) == 0
    held = students.evaluate(state) if evaluates else None
    since = step - (step - 1) // recipe.mask_every * recipe.mask_every
    line: dict[str, Any] = {"step": step, "devices": students.devices, "code": provenance.code_hash(), "students": {}}
    for i, (target, one) in enumerate(zip(students.config.targets, state, strict=True)):
        density = plan.density(target.density, plan.mask_before(step))
        entry: dict[str, Any] = {"churn": int(one.churn), "density": density}
        if step:
            entry |= {name: float(term) / since for name, term in one.sums._asdict().items()}
        if held:
            entry |= dict(zip(("held_out_target", "held_out_kernel"), held[i], strict=True))
        line["students"][target.name] = entry
    journal.report(line)
    return line


def _broken(state: States) -> list[str]:
    """What is not finite in some student."""
    return [name for name in LossSums._fields if not all(np.isfinite(float(getattr(one.sums, name))) for one in state)]


def _explain(students: Students, state: States, start: int, stop: int, journal: Journal) -> NoReturn:
    """Finds the step and the term that broke, saves the last good state, and raises."""
    for step in range(start, stop):
        moved = students.advance(state, step, step + 1)
        if not (names := _broken(moved)):
            state = moved
            continue
        journal.save(step, state)
        where = f" The state before it is kept in {journal.folder}." if journal.folder else ""
        raise TrainingError(
            f"the search broke at step {step + 1}: not finite: {', '.join(names)}.{where} Start over (--fresh) with a "
            f"smaller learning_rate than {students.recipe.learning_rate:g} or kernel_weight than "
            f"{students.recipe.kernel_weight:g}."
        )
    raise TrainingError(f"the search broke between steps {start + 1} and {stop}, but not when these were done again.")


def _goodbye(step: int, steps: int, journal: Journal) -> str:
    if journal.folder:
        return f"stopped at step {step} of {steps}; the same command resumes from there."
    return f"stopped at step {step} of {steps}; nothing was saved, because the run has no folder."


@contextmanager
def _listening() -> Iterator[list[int]]:
    """A list that gets the number of a signal that asks to stop, instead of the process being stopped at once."""
    signals: list[int] = []
    before = {}
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda received, _: signals.append(received))
    except ValueError:
        pass  # signals can be caught in the main thread only
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
