"""Rounds of kills and damage beside a search that is watched, until the time is over."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Mapping
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

    Each round kills one writer of each kind, and reads damaged copies of what they write. `save` gets the
    counts after each round, so that a soak that is interrupted has lost one round.
    """
    content: dict[str, Any] = {"seed": seed, "rounds": 0, "minutes": 0.0, "kills": {}, "damage": {}, "search": []}
    content |= earlier or {}
    begun, before = time.monotonic(), content["minutes"]
    with tempfile.TemporaryDirectory(prefix="nttzoo-soak-") as temporary, Watch(Path(temporary) / "watched") as watch:
        folder = Path(temporary)
        while time.monotonic() - begun < 60 * minutes:
            rng = random.Random(f"{seed} {content['rounds']}")  # a soak that is resumed tries something new
            for kind in damage.KINDS_WITH_HASHES:
                _add(content["damage"], kind, damage.damage(kind, folder / "damaged", MUTATIONS, rng))
            for kind in writers.KINDS:
                _add(content["kills"], kind, writers.kill(kind, folder / kind, rng))
            content["rounds"] += 1
            if content["rounds"] % SEARCH_EVERY == 0:
                _add(content["kills"], "search", searches.kill(folder / "search", rng))
            content["minutes"] = round(before + (time.monotonic() - begun) / 60, 1)
            save(content)
        content["search"] = [*content["search"], watch.stop()]
    save(content)
    return content


def _add(totals: dict[str, dict[str, int]], kind: str, counts: Mapping[str, int]) -> None:
    into = totals.setdefault(kind, {})
    for name, count in counts.items():
        into[name] = into.get(name, 0) + count
