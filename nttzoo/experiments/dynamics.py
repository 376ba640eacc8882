"""Zeros and ones, as the paper has it: students of both kinds of tangents on the same axes as their teacher."""

from __future__ import annotations

from collections.abc import Callable

from nttzoo._util import provenance
from nttzoo.experiments import plots, trajectories
from nttzoo.experiments.reproduce import Workplace

TANGENTS = ("all", "active")
# Data set, networks, steps of search and of training.
BUDGETS: dict[str, tuple[str, tuple[str, ...], int, int]] = {
    "paper": ("mnist", ("lenet300", "lenet5"), 5000, 5000),
    "cpu": ("mnist", ("lenet300", "lenet5"), 5000, 5000),
    "smoke": ("mnist5k", ("lenet300",), 20, 20),
}


def run(budget: str, place: Workplace, *, say: Callable[[str], None] = print) -> None:
    """Follows each network that has no result yet; writes numbers and a picture."""
    data, models, search_steps, steps = BUDGETS[budget]
    folder = place.results / "dynamics"
    folder.mkdir(parents=True, exist_ok=True)
    for model in models:
        out = folder / f"{model}-{data}-{search_steps}steps.json"
        if not out.exists():
            options = {"epochs": search_steps, "steps": steps, "tangents": TANGENTS}
            kept = place.runs[0] / "dynamics" / out.stem
            seen = trajectories.follow(model, place.dataset(data), **options, folder=kept)  # type: ignore[arg-type]
            for kind in ("svg", "png"):
                plots.trajectories(seen, out.with_suffix(f".{kind}"))
            provenance.write_json(out, {**seen.to_dict(), **provenance.origin()})
        say(f"{model}: {out}")
