"""Zeros and ones, as the paper has it: students of both kinds of tangents on the same axes as their teacher."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from nttzoo._util import provenance, schema
from nttzoo._util.console import markdown
from nttzoo.errors import OptionError
from nttzoo.experiments import plots, trajectories
from nttzoo.experiments.reproduce import Workplace

TANGENTS = ("all", "active")
# Data set, networks, steps of search and of training.
BUDGETS: dict[str, tuple[str, tuple[str, ...], int, int]] = {
    "paper": ("mnist", ("lenet300", "lenet5"), 5000, 5000),
    "cpu": ("mnist", ("lenet300", "lenet5"), 5000, 5000),
    "smoke": ("mnist5k", ("lenet300",), 20, 20),
}


def select(models: Sequence[str], only: Sequence[str]) -> list[str]:
    """The networks whose names match one of the globs; all, if there is no glob."""
    chosen = [model for model in models if not only or any(fnmatchcase(model, pattern) for pattern in only)]
    if not chosen:
        raise OptionError(f"no network matches {', '.join(only)}; there are {', '.join(models)}.")
    return chosen


def run(budget: str, place: Workplace, *, only: Sequence[str] = (), say: Callable[[str], None] = print) -> None:
    """Follows each network that has no result yet; writes numbers and a picture. `only`: globs over the networks."""
    data, models, search_steps, steps = BUDGETS[budget]
    folder = place.results / "dynamics"
    folder.mkdir(parents=True, exist_ok=True)
    for model in select(models, only):
        out = folder / f"{model}-{data}-{search_steps}steps.json"
        if not out.exists():
            options = {"epochs": search_steps, "steps": steps, "tangents": TANGENTS}
            kept = place.runs[0] / "dynamics" / out.stem
            seen = trajectories.follow(model, place.dataset(data), **options, folder=kept)  # type: ignore[arg-type]
            for kind in ("svg", "png"):
                plots.trajectories(seen, out.with_suffix(f".{kind}"))
            provenance.write_json(out, {**seen.to_dict(), **provenance.origin()})
        say(f"{model}: {out}")


def section(results: Path, report: Path) -> str:
    """The part of the report: how long each network takes to learn, and how far it is from the teacher's path.

    `results`: the folder of results; `report`: that of the report, to which links to pictures are relative.
    """
    parts = []
    for file in sorted((results / "dynamics").glob("*.json")):
        content = schema.read(file, schema.TrajectoriesFile, what="the trajectories that `reproduce dynamics` writes")
        kernels = {
            who: f"{s['kernel_before']:.4g} to {s['kernel_after']:.4g}" for who, s in content["students"].items()
        }
        rows = [
            (
                who,
                kernels.get(who, "-"),
                "never" if steps is None else f"{steps:,}",
                f"{content['mean_distance_from_teacher'].get(who, 0):.3f}",
                f"{content['final_loss'][who]:.2g}",
            )
            for who, steps in content["steps_to_learn"].items()
        ]
        columns = ("network", "kernel distance", "steps to a tenth of the loss", "distance from the path", "final loss")
        picture = Path(os.path.relpath(file.with_suffix(".png"), report))
        title = f"{content['model']}, {content['steps']:,} steps of gradient descent"
        parts.append(f"{title}:\n\n{markdown(columns, rows)}\n\n![{title}]({picture.as_posix()})")
    if not parts:
        return ""
    text = (
        "Teacher, students and a random mask learn to tell zeros from ones. Students are searched for with the "
        "tangents of all weights, or of the surviving (active) ones; gradient descent moves only the latter."
    )
    return f"## Training dynamics\n\n{text}\n\n" + "\n\n".join(parts)
