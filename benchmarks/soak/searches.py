"""A search that is killed and resumed, beside one that is not: they must find the same network, bit for bit."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from nttzoo import checkpoint

OPTIONS = ("--epochs", "1", "--batch-size", "64", "--mask-every", "20", "--density", "0.02", "--save-every", "0.5")
KILLS = 3  # of one search


def kill(folder: Path, rng: random.Random) -> dict[str, int]:
    """Kills a search a few times, and compares what it finds in the end with what another found."""
    if not (folder / "whole" / "summary.json").exists():
        subprocess.run(_command(folder / "whole"), check=True, capture_output=True)
    shutil.rmtree(folder / "cut", ignore_errors=True)
    kills = 0
    for _ in range(KILLS):
        before = _states(folder / "cut")
        process = subprocess.Popen(_command(folder / "cut"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and _states(folder / "cut") == before:
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 1))
        kills += process.poll() is None
        process.kill()
        process.wait()
    done = subprocess.run(_command(folder / "cut"), capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"search: {done.stderr[-500:]}", file=sys.stderr)
        return {"kills": kills, "wrong": 1}
    ours, theirs = (
        checkpoint.pack(checkpoint.load_network(folder / one / "students" / "2pct-layerwise")[0])
        for one in ("cut", "whole")
    )
    return {"kills": kills, "wrong": int(any(not np.array_equal(ours[name], theirs[name]) for name in theirs))}


def _command(out: Path) -> list[str]:
    return [sys.executable, "scripts/search.py", *OPTIONS, "--out", str(out)]


def _states(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints").glob("[0-9]*")}
