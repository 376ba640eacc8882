"""The figures of a soak as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nttzoo._util import files

NAMES = {
    "network": "a network's folder (`save_network`)",
    "zoo": "a zoo's entry and index (`publish`)",
    "state": "a run's state (`Checkpoints`)",
    "training": "a training's checkpoint (`fit`)",
    "result": "a result (`reproduce`, `compare`)",
    "search": "a whole search, resumed",
}


SEARCHES = (
    "Searches are killed and resumed three times; what they find must be what a search that was never killed finds,",
    "bit for bit.",
)


def write_report(path: Path, content: Mapping[str, Any], source: str) -> None:
    """Writes the page; `source` is the JSON file that it is made of."""
    kills, damaged = content["kills"], content["damage"]
    wrong = sum(counts["wrong"] for group in (kills, damaged) for counts in group.values())
    machine = content["machine"]
    lines = [
        "# Kills, damage and long runs",
        "",
        f"`{content['command']}` and earlier runs of it took {content['minutes']:g} minutes on {machine['cores']} "
        f"cores ({machine['processor']}), which they shared with other work. "
        f"The same command made this page from [{source}]({source}).",
        "",
        f"**Wrong answers: {wrong}**, of {sum(counts['kills'] for counts in kills.values())} kills and "
        f"{sum(counts['tried'] for counts in damaged.values()):,} damaged copies.",
        "",
        "## Kills",
        "",
        "Processes that replace something again and again, killed by SIGKILL at random moments. What is read",
        "afterwards must be one of the things written, whole.",
        *(SEARCHES if "search" in kills else ("No whole search was killed in these runs.",)),
        "",
        "| what was being written | kills | wrong |",
        "|---|---|---|",
        *(f"| {NAMES[kind]} | {counts['kills']} | {counts['wrong']} |" for kind, counts in kills.items()),
        "",
        "## Damage",
        "",
        "One file with a flipped bit, cut short, overwritten, grown or deleted. It must be refused (a run takes its",
        "previous state instead, a training starts over), or be read as it was written.",
        "",
        "| what was damaged | tried | refused | read as written | wrong |",
        "|---|---|---|---|---|",
        *(
            f"| {NAMES[kind]} | {one['tried']} | {one['refused']} | {one['same']} | {one['wrong']} |"
            for kind, one in damaged.items()
        ),
        "",
        "## A search that goes on and on",
        "",
        "LeNet-300 on MNIST, a state saved every five seconds.",
        "",
        "| minutes | resident memory | open files | threads |",
        "|---|---|---|---|",
    ]
    for session in content["search"]:
        lines += [
            f"| {one['minutes']:g} | {one['memory_mib']:,} MiB | {one['open_files']} | {one['threads']} |"
            for one in _some(session["samples"])
        ]
        lines += [f"| ended by SIGTERM, exit code {session['exit_code']}, after {session['steps']:,} steps | | | |"]
    files.write_text(path, "\n".join(lines) + "\n")


def _some(samples: list[Any]) -> list[Any]:
    """About ten of them, evenly spread, with the first and the last."""
    if len(samples) <= 10:
        return samples
    return [samples[round(i * (len(samples) - 1) / 9)] for i in range(10)]
