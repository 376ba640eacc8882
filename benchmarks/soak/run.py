"""Rounds of kills and damage beside a search that is watched, until the time is over."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.soak import damage, searches, writers
from benchmarks.soak.watch import Watch

SEARCH_EVERY = 3  # rounds: it takes as long as the others together
MUTATIONS = 25  # of each kind, per round


def run(
    *, minutes: float, seed: int = 0, earlier: Mapping[str, Any] | None = None, save: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Runs rounds for so many minutes; returns the counts, those of `earlier` runs included.

    Each round kills one writer of each kind, and reads damaged copies of what they write. `save` gets the counts after
    each attempt, so that a soak that is interrupted loses one.
    """
    content: dict[str, Any] = {"seed": seed, "rounds": 0, "minutes": 0.0, "kills": {}, "damage": {}, "search": []}
    content |= earlier or {}
    begun, before = time.monotonic(), content["minutes"]
    with tempfile.TemporaryDirectory(prefix="nttzoo-soak-") as temporary, Watch(Path(temporary) / "watched") as watch:
        try:
            while True:
                # A soak that is resumed tries something new.
                rng = random.Random(f"{seed} {content['rounds']} {before}")
                for part, kind, attempt in _round(Path(temporary), content["rounds"]):
                    if time.monotonic() - begun > 60 * minutes:
                        return content
                    _add(content[part], kind, attempt(rng))
                    content["minutes"] = round(before + (time.monotonic() - begun) / 60, 1)
                    save(content)
                content["rounds"] += 1
        finally:
            content["search"] = [*content["search"], watch.stop()]
            save(content)


def watch_search(*, minutes: float, earlier: Mapping[str, Any], origin: Mapping[str, Any]) -> dict[str, Any]:
    """Only watches a search for so many minutes; its samples replace those of earlier runs."""
    with tempfile.TemporaryDirectory(prefix="nttzoo-soak-") as temporary, Watch(Path(temporary) / "watched") as watch:
        time.sleep(60 * minutes)
        share = {"niceness": os.nice(0), "own_cores": len(os.sched_getaffinity(0))}
        return {**earlier, "search": [{**watch.stop(), **share, **origin}]}


def _round(folder: Path, number: int) -> Iterator[tuple[str, str, Callable[[random.Random], dict[str, int]]]]:
    """What to do in a round: where it is counted, of which kind it is, and the attempt itself."""
    for kind in writers.KINDS:
        yield "kills", kind, partial(writers.kill, kind, folder / kind)
    for kind in damage.KINDS_WITH_HASHES:
        yield "damage", kind, partial(damage.damage, kind, folder / "damaged", MUTATIONS)
    if number % SEARCH_EVERY == 0:
        yield "kills", "search", partial(searches.kill, folder / "search")


def _add(totals: dict[str, dict[str, int]], kind: str, counts: Mapping[str, int]) -> None:
    into = totals.setdefault(kind, {})
    for name, count in counts.items():
        into[name] = into.get(name, 0) + count
