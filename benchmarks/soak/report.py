"""The figures of a soak as a page."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
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
        "LeNet-300 on MNIST, a state saved every five seconds. Each row is a part of the run: memory at its end, and",
        "the range of open files and threads, of which there are more while a state is saved.",
        "",
        "| minutes | resident memory | open files | threads |",
        "|---|---|---|---|",
    ]
    for session in content["search"]:
        lines += [
            f"| {part[-1]['minutes']:g} | {part[-1]['memory_mib']:,} MiB | {_range(part, 'open_files')} "
            f"| {_range(part, 'threads')} |"
            for part in _parts(session["samples"])
        ]
        lines += [f"| ended by SIGTERM, exit code {session['exit_code']}, after {session['steps']:,} steps | | | |"]
        if "command" in session:
            lines += [
                "",
                f"`{session['command']}` measured this on {session['date']}, with niceness {session['niceness']} on "
                f"{session['own_cores']} of {session['machine']['cores']} cores ({session['machine']['processor']}).",
            ]
    files.write_text(path, "\n".join(lines) + "\n")


def _parts(samples: list[Any]) -> list[list[Any]]:
    """About ten parts of equal length, in order."""
    edges = [round(i * len(samples) / 10) for i in range(11)]
    return [samples[start:stop] for start, stop in pairwise(edges) if start < stop]


def _range(part: list[Any], what: str) -> str:
    values = [one[what] for one in part]
    return f"{min(values)} to {max(values)}" if min(values) < max(values) else f"{values[0]}"
