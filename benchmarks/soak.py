"""Real kills, random damage and long searches: counts how often what was read afterwards was wrong.

Unlike tests/faults, which interrupt single file-system events, this kills processes with SIGKILL at random moments.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from nttzoo import architectures, checkpoint, data, zoo
from nttzoo._util import provenance
from nttzoo.errors import NttzooError
from nttzoo.experiments import publish
from nttzoo.sparsity import pruning
from nttzoo.zoo import changes

NAME = "lenet300-mnist-1pct-global"
SEARCH = ("--epochs", "2", "--batch-size", "32", "--mask-every", "50", "--density", "0.02", "--save-every", "0.5")


def run(*, kills: int, mutations: int, search_minutes: float, seed: int = 0) -> dict[str, Any]:
    """All parts, one after the other, in a temporary folder.

    Args:
      kills: how many writers of each kind are killed, and a tenth as many searches.
      mutations: how many damaged copies of a network, an entry and a run's state are read.
      search_minutes: for how long memory and open files of a search are watched.
      seed: of all random choices.
    """
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="nttzoo-soak-") as temporary:
        folder = Path(temporary)
        content = {
            "killed_savers": _kill_writers("save", folder / "save", kills, rng, _check_network),
            "killed_publishers": _kill_writers("publish", folder / "publish", kills, rng, _check_home),
            "killed_searches": _kill_searches(folder / "search", max(kills // 10, 1), rng),
            "mutated_networks": _mutate(folder / "networks", mutations, rng),
            "watched_search": _watch(folder / "watched", search_minutes),
        }
    return {"seed": seed, **content, **provenance.origin()}


# Writers that are killed while they replace, again and again, what is there by something else.


def network(seed: int) -> Any:
    """One of the networks that a writer writes; its description says which."""
    model: Any = architectures.create("lenet300", input_shape=(8, 8, 1), num_classes=3, rngs=seed)
    model.input_spec = data.InputSpec((8, 8, 1), (float(seed),), (1.0,), ("a", "b", "c"))
    return pruning.prune(model, "magnitude", density=0.1)


def write_forever(kind: str, folder: Path) -> None:
    """What the process that is to be killed does."""
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        if kind == "save":
            about = {"architecture": "lenet300", "seed": number % 5}
            checkpoint.save_network(folder / "network", network(number % 5), about)
        else:
            _publish(folder, f"made {number}")


def _publish(home: Path, command: str) -> None:
    package = zoo.homes()[0]
    with changes.changing(home) as stage:
        others = zoo.verify(home, leave_out=[NAME])
        for kind in ("models", "checkpoints"):
            shutil.copytree(package / kind / NAME, stage / kind / NAME)
        (stage / "checkpoints" / NAME / "manifest.json").unlink()
        path = stage / "models" / NAME / "metrics.json"
        metrics = {**provenance.read_json(path), "command": command}
        path.unlink()
        provenance.write_json(path, metrics)
        publish.stage_index(home, stage, new=[NAME], names={*others, NAME})


def _kill_writers(
    kind: str, folder: Path, kills: int, rng: random.Random, check: Callable[[Path], None]
) -> dict[str, int]:
    folder.mkdir()
    seen: Counter[str] = Counter(kills=0, wrong=0, leftovers=0)
    for _ in range(kills):
        command = [sys.executable, "-m", "benchmarks.soak", kind, str(folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0.05, 3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        seen["kills"] += 1
        seen["leftovers"] += any(path.name.startswith(".") and path.is_dir() for path in folder.iterdir())
        try:
            check(folder)
        except Exception as error:  # counted, whatever it is
            print(f"{kind}: {error}", file=sys.stderr)
            seen["wrong"] += 1
    return dict(seen)


def _check_network(folder: Path) -> None:
    if not (folder / "network").exists():
        return  # the first one was never finished
    model, about = checkpoint.load_network(folder / "network")
    expected = checkpoint.pack(network(about["seed"]))
    found = checkpoint.pack(model)
    if model.input_spec.mean != (float(about["seed"]),) or any(
        not np.array_equal(found[name], expected[name]) for name in expected
    ):
        raise AssertionError("arrays and description are of different networks")


def _check_home(home: Path) -> None:
    zoo.verify(home)


def _kill_searches(folder: Path, kills: int, rng: random.Random) -> dict[str, int]:
    """A search that is killed again and again, beside one that is not: they must end alike, bit for bit."""

    def command(out: str) -> list[str]:
        return [sys.executable, "scripts/search.py", *SEARCH, "--out", str(folder / out)]

    subprocess.run(command("whole"), check=True, capture_output=True)
    seen = Counter(kills=0, wrong=0)
    while seen["kills"] < kills:
        out = f"cut{seen['kills']}"
        process = subprocess.Popen(command(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not list((folder / out / "checkpoints").glob("[0-9]*")):
            time.sleep(0.05)
        time.sleep(rng.uniform(0, 3))
        process.kill()
        process.wait()
        seen["kills"] += 1
        subprocess.run(command(out), check=True, capture_output=True)
        ours, theirs = (
            checkpoint.pack(checkpoint.load_network(folder / one / "students" / "2pct-layerwise")[0])
            for one in (out, "whole")
        )
        seen["wrong"] += any(not np.array_equal(ours[name], theirs[name]) for name in theirs)
    return dict(seen)


# Damage.


def _mutate(folder: Path, count: int, rng: random.Random) -> dict[str, int]:
    """Flips, cuts and overwrites random places of a network's files; it must be refused, or be the same network."""
    checkpoint.save_network(folder / "whole", network(1), {"architecture": "lenet300", "seed": 1})
    expected = checkpoint.pack(network(1))
    seen: Counter[str] = Counter(tried=0, refused=0, same=0, wrong=0)
    for _ in range(count):
        shutil.rmtree(folder / "copy", ignore_errors=True)
        shutil.copytree(folder / "whole", folder / "copy")
        _damage(rng.choice([path for path in (folder / "copy").rglob("*") if path.is_file()]), rng)
        seen["tried"] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = checkpoint.pack(checkpoint.load_network(folder / "copy")[0])
        except (NttzooError, UserWarning):
            seen["refused"] += 1
        except Exception as error:
            print(f"mutation: {error!r}", file=sys.stderr)
            seen["wrong"] += 1
        else:
            same = found.keys() == expected.keys() and all(np.array_equal(found[k], expected[k]) for k in found)
            seen["same" if same else "wrong"] += 1
    return dict(seen)


def _damage(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    kind = rng.choice(["flip", "flip", "flip", "cut", "overwrite", "delete", "grow"])
    if kind == "delete":
        path.unlink()
        return
    if kind == "flip" and content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del content[rng.randrange(len(content) + 1) :]
    elif kind == "overwrite" and content:
        place = rng.randrange(len(content))
        content[place : place + 16] = rng.randbytes(16)
    else:
        content += rng.randbytes(8)
    path.write_bytes(content)


# A long search.


def _watch(folder: Path, minutes: float) -> dict[str, Any]:
    """Resident memory and open files of a search, at the end of its first quarter and of its last."""
    command = [sys.executable, "scripts/search.py", "--epochs", "10000", "--save-every", "5", "--out", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watched, samples = psutil.Process(process.pid), []
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end and process.poll() is None:
        time.sleep(2)
        samples.append((watched.memory_info().rss / 2**20, watched.num_fds(), watched.num_threads()))
    process.terminate()
    code = process.wait()
    quarter = samples[len(samples) // 4]
    names = ("memory_mib", "open_files", "threads")
    return {
        "minutes": minutes,
        "exit_code": code,
        "after_a_quarter": {name: round(value) for name, value in zip(names, quarter, strict=True)},
        "at_the_end": {name: round(value) for name, value in zip(names, samples[-1], strict=True)},
    }


if __name__ == "__main__":
    write_forever(sys.argv[1], Path(sys.argv[2]))
