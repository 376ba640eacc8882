"""The file of a comparison: which cases it holds, who made them, and its table."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from nttzoo._util import console, provenance, schema
from nttzoo.errors import FileError, NttzooError, OptionError
from nttzoo.experiments.comparison.plan import Case, Comparison
from nttzoo.sparsity.density import Density, density_name, density_text


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
    groups: dict[tuple[Any, ...], dict[str, list[float]]] = {}
    texts: dict[str, Density] = {}
    costs: dict[tuple[Any, ...], list[float]] = {}
    for case in content["cases"]:
        key = (case["method"], case.get("scheme", ""), case.get("control", ""))
        density = case.get("density", 1.0)
        texts[text := density_text(density)] = density
        groups.setdefault(key, {}).setdefault(text, []).append(case["test_accuracy"])
        costs.setdefault(key, []).extend([case["method_seconds"]] if "method_seconds" in case else [])
    if not groups:
        raise OptionError("the comparison has no cases yet.")

    # Numbers by size, then those per layer in the order of the cases.
    def size(text: str) -> float:
        density = texts[text]
        return 2.0 if isinstance(density, Mapping) else density

    densities = sorted(texts, key=size)
    rows = []
    for key, row in groups.items():
        cells = []
        for density in densities:
            values = [100 * value for value in row.get(density, [])]
            spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}" if values else "-")
        seconds = f"{statistics.mean(costs[key]):.1f}" if costs[key] else "-"
        rows.append((" ".join(part for part in key if part), *cells, seconds))
    return console.table("test accuracy, %", ("method", *densities, "cost, s"), rows)


def layers_table(content: dict[str, Any]) -> str:
    """The fraction of weights that each layer keeps, per scheme and density; methods that keep the same share a row.

    "" for a comparison without layers, written by an earlier version.
    """

    def what(case: Case) -> tuple[str, str]:
        return case["scheme"], density_name(case["density"])

    known = [case for case in content["cases"] if "density" in case and case.get("layers") and "control" not in case]
    rows: list[tuple[str, ...]] = []
    for _, group in groupby(sorted(known, key=what), what):
        alike: dict[tuple[str, ...], list[str]] = {}
        for case in group:
            shares = tuple(f"{layer['kept'] / layer['size']:.2%}" for layer in case["layers"])
            alike.setdefault(shares, []).append(case["method"])
            title = f"{density_text(case['density'])} {case['scheme']}"
        rows += [(f"{title}: {', '.join(dict.fromkeys(methods))}", *shares) for shares, methods in alike.items()]
    names = [layer["name"] for layer in known[0]["layers"]] if known else []
    return console.table("", ("density per layer", *names), rows) if rows else ""


def kept_share(case: Case) -> float:
    """The fraction of weights that the network of a case keeps: its density, if that is one number."""
    if isinstance(case["density"], Mapping):
        return sum(layer["kept"] for layer in case["layers"]) / sum(layer["size"] for layer in case["layers"])
    return case["density"]
