"""Every measured figure of README and docs is in the results that its section cites."""

import json
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Three digits and more: 95.36, 1,165, 0.045; not a part of a word, a version or a name.
FIGURE = re.compile(r"(?<![\w.,/#-])(\d{1,3}(?:,\d{3})+|\d+)(\.\d+)?(?![\w/]|[.,]\d|-\d)")
CITED = re.compile(r"\]\((?:\.\./)?((?:results|models)[^)#\s]*)\)")
NOT_MEASURED = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|<!--.*?-->|https?://\S+", re.DOTALL)
# Units: percent, milli and kilo, milliseconds for 64 images as microseconds for one, minutes, hours, MiB, GiB.
SCALES = (1, 100, 1e3, 1e-3, 1e6, 1e-6, 1000 / 64, 1 / 60, 1 / 3600, 2.0**-20, 2.0**-30)
# Not measured here: years, settings, exit codes, sizes by arithmetic; and the accuracies that the authors published.
GIVEN = {
    "README.md": {"2020"},
    "deployment.md": {"2025"},
    "gallery.md": {"100"},
    "reproducing.md": {"600"},
    "results.md": {"96.46", "93.78", "93.15", "52.14", "65.58", "600"},
    "scaling.md": {"143", "150", "256", "2048", "104", "160", "2,190", "2,200"},
}


def leaves(content):
    """The numbers in JSON, the means of lists of numbers, and the ratios that rows of a benchmark are about."""
    if isinstance(content, bool) or content is None or isinstance(content, str):
        return
    if isinstance(content, int | float):
        yield float(content)
    elif isinstance(content, dict):
        for key, value in content.items():
            if key != "history":
                yield from leaves(value)
        yield from over_seeds(content.get("cases", []))
    elif isinstance(content, list):
        numbers = [value for value in content if isinstance(value, int | float)]
        if numbers and len(numbers) == len(content):
            yield sum(numbers) / len(numbers)
        for value in content:
            yield from leaves(value)


def over_seeds(cases):
    """Mean test accuracies of cases that differ in their seed."""
    groups = {}
    for case in cases:
        if "test_accuracy" in case:
            kind = tuple(case.get(key) for key in ("method", "scheme", "density", "control"))
            groups.setdefault(kind, []).append(case["test_accuracy"])
    yield from (sum(values) / len(values) for values in groups.values())


@cache
def measured(cited):
    path = ROOT / cited
    if cited.startswith("models/"):
        files = [path.parent / "metrics.json" if path.suffix else path / "metrics.json"]
    else:
        files = sorted(path.rglob("*.json")) if path.is_dir() else [path.with_suffix(".json")]
    return {value for file in files if file.exists() for value in leaves(json.loads(file.read_text()))}


def sections(text):
    return [part for part in re.split(r"^#+ ", text, flags=re.MULTILINE) if part.strip()]


def figures(section):
    for match in FIGURE.finditer(NOT_MEASURED.sub(" ", section)):
        whole, decimals = match.group(1).replace(",", ""), match.group(2) or ""
        if len((whole + decimals).replace(".", "").lstrip("0")) >= 3:
            yield match.group(0), float(whole + decimals), max(len(decimals) - 1, 0)


def is_measured(value, places, pool):
    half = 0.5000001 * 10.0**-places
    return any(abs(known * scale - value) <= half for known in pool for scale in SCALES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_are_in_the_results_that_the_section_cites(page):
    missing = []
    for section in sections(page.read_text()):
        pool = set().union(*(measured(cited) for cited in CITED.findall(section)))
        title = section.splitlines()[0]
        missing += [
            f"{title}: {text}"
            for text, value, places in figures(section)
            if text not in GIVEN.get(page.name, ()) and not is_measured(value, places, pool)
        ]
    assert not missing


def test_a_figure_that_nobody_measured_is_found():
    section = "Training\n\nTakes 2.7 and 7.777 ms ([results](../results/bench_train.json)), 82.4 ms dense."
    (cited,) = CITED.findall(section)
    missing = [text for text, value, places in figures(section) if not is_measured(value, places, measured(cited))]
    assert missing == ["7.777"]
