"""The file of a comparison: which cases it holds, who made them, and its table."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from nttzoo._util import console, provenance, schema
from nttzoo.errors import FileError, NttzooError, OptionError
from nttzoo.experiments.comparison.plan import Case, Comparison


def read(path: Path) -> dict[str, Any]:
    """The content of a comparison's file."""
    content = schema.read(path, schema.ComparisonFile, what="a comparison: `nttzoo compare` writes them")
    try:
        Comparison.from_dict(content["comparison"])
    except (TypeError, NttzooError) as error:
        raise FileError(path, f"holds no comparison that this version of nttzoo can read: {error}") from error
    origins = content.get("origins")
    if origins is not None and any(case.get("origin", 0) >= max(len(origins), 1) for case in content["cases"]):
        raise FileError(path, "has cases without an origin")
    return content


def missing_cases(comparison: Comparison, content: dict[str, Any]) -> list[Case]:
    """The cases that are still to be measured."""
    done = [case_of(case) for case in content["cases"]]
    return [case for case in comparison.cases() if case not in done]


def origin_of(content: dict[str, Any], case: Case) -> dict[str, Any]:
    """The command, date, versions and machine that made a case of a comparison."""
    origins = content.get("origins")
    return origins[case.get("origin", 0)] if origins else content  # an older file has one, at its top


def origins_with_now(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of the earlier cases, and now's."""
    now = provenance.origin()
    earlier = content.get("origins", [{key: content[key] for key in now if key in content}])
    return earlier if now in earlier[-1:] else [*earlier, now]


def case_of(measured: Case) -> Case:
    """Which case was measured, without the measurements."""
    return {key: measured[key] for key in ("method", "seed", "scheme", "density", "control") if key in measured}


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
