"""Processes that replace, again and again, what is there by something else, until they are killed.

Each kind has a way to write number k, and a way to read what is there, which says which number it is.
"""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from nttzoo import architectures, checkpoint, data, zoo
from nttzoo._util import provenance
from nttzoo.experiments import publish
from nttzoo.sparsity import pruning
from nttzoo.training import TrainConfig
from nttzoo.training.checkpoint import Checkpoint
from nttzoo.training.history import SERIES, History
from nttzoo.zoo import changes

ENTRY = "lenet300-mnist-1pct-global"
SHAPE = (8, 8, 1)


class Kind(NamedTuple):
    """What a writer does in a folder, and what a reader finds there afterwards: a number, or None before the first."""

    write: Callable[[Path, int], None]
    read: Callable[[Path], int | None]


def network(number: int) -> Any:
    """One of five networks; the mean of its input says which."""
    model: Any = architectures.create("lenet300", input_shape=SHAPE, num_classes=3, rngs=number % 5)
    model.input_spec = data.InputSpec(SHAPE, (float(number % 5),), (1.0,), ("a", "b", "c"))
    return pruning.prune(model, "magnitude", density=0.1)


def _write_network(folder: Path, number: int) -> None:
    checkpoint.save_network(folder / "network", network(number), {"architecture": "lenet300", "seed": number % 5})


def _read_network(folder: Path) -> int | None:
    if not (folder / "network").exists():
        return None
    model, about = checkpoint.load_network(folder / "network")
    _same(checkpoint.pack(model), checkpoint.pack(network(about["seed"])))
    _equal(model.input_spec.mean, (float(about["seed"]),))
    return about["seed"]


def _publish(home: Path, number: int) -> None:
    package = zoo.homes()[0]
    with changes.changing(home) as stage:
        others = zoo.verify(home, leave_out=[ENTRY])
        for kind in ("models", "checkpoints"):
            shutil.copytree(package / kind / ENTRY, stage / kind / ENTRY)
        (stage / "checkpoints" / ENTRY / "manifest.json").unlink()
        path = stage / "models" / ENTRY / "metrics.json"
        metrics = {**provenance.read_json(path), "command": f"made {number}"}
        path.unlink()
        provenance.write_json(path, metrics)
        publish.stage_index(home, stage, new=[ENTRY], names={*others, ENTRY})


def _read_home(home: Path) -> int | None:
    if not zoo.verify(home):
        return None
    metrics = provenance.read_json(home / "models" / ENTRY / "metrics.json")
    return int(metrics["command"].removeprefix("made "))


def _state(number: int) -> dict[str, Any]:
    return {"a": jnp.full(5000, number), "b": jnp.full((), number)}


def _write_state(folder: Path, number: int) -> None:
    kept = checkpoint.Checkpoints(folder / "states")
    last = kept.latest_whole()
    number = 0 if last is None else last + 1
    kept.save(number, _state(number), {"reports.jsonl": f"{number}\n"})
    kept.close()


def _read_state(folder: Path) -> int | None:
    kept = checkpoint.Checkpoints(folder / "states")
    step = kept.latest_whole()
    if step is None:
        return None
    found = kept.restore(step, _state(0))
    _same(found, _state(step))
    _equal(kept.text(step, "reports.jsonl"), f"{step}\n")
    return step


def _training(folder: Path) -> Checkpoint:
    images = np.zeros((2, *SHAPE), np.uint8)
    labels = np.zeros(2, np.int32)
    part = data.Labeled(images, labels)
    every = data.Dataset("zeros", part, part, ("a", "b", "c"))
    return Checkpoint(folder / "training", TrainConfig(), every, np.zeros(3))


def _write_training(folder: Path, number: int) -> None:
    history = History(**{name: [float(number)] for name in SERIES})  # type: ignore[arg-type]
    _training(folder).write(history, {"weights": np.full(50_000, number)}, now=True)


def _read_training(folder: Path) -> int | None:
    saved = _training(folder).read()
    if saved is None:
        return None
    number = int(saved.history.train_loss[0])
    _same(saved.arrays, {"weights": np.full(50_000, number)})
    return number


def _write_result(folder: Path, number: int) -> None:
    provenance.write_json(folder / "result.json", {"numbers": [number] * 5000})


def _read_result(folder: Path) -> int | None:
    if not (folder / "result.json").exists():
        return None
    numbers = provenance.read_json(folder / "result.json")["numbers"]
    _equal(numbers, [numbers[0]] * 5000)
    return numbers[0]


KINDS = {
    "network": Kind(_write_network, _read_network),
    "zoo": Kind(_publish, _read_home),
    "state": Kind(_write_state, _read_state),
    "training": Kind(_write_training, _read_training),
    "result": Kind(_write_result, _read_result),
}


def kill(kind: str, folder: Path, rng: random.Random) -> dict[str, int]:
    """Starts a writer, kills it, and reads what it left."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.soak.writers", kind, str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(rng.uniform(0, 2))
    ended = process.poll() is not None  # a writer that gave up is a wrong answer too
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    try:
        KINDS[kind].read(folder)
    except Exception as error:  # counted, whatever it is
        print(f"{kind}: {error!r}", file=sys.stderr)
        return {"kills": 1, "wrong": 1}
    return {"kills": 1, "wrong": int(ended)}


def _same(found: Any, expected: Any) -> None:
    if found.keys() != expected.keys() or any(not np.array_equal(found[name], expected[name]) for name in expected):
        raise AssertionError("what was written together is not what was read together")


def _equal(found: Any, expected: Any) -> None:
    if found != expected:
        raise AssertionError(f"read {found}, not {expected}")


def main() -> None:
    """What the process that is to be killed does."""
    kind, folder = KINDS[sys.argv[1]], Path(sys.argv[2])
    number = kind.read(folder) or 0  # imports and compiles; and what the last kill left does not stand in the way
    number += 1
    kind.write(folder, number)
    print("ready", flush=True)
    while True:
        number += 1
        kind.write(folder, number)


if __name__ == "__main__":
    main()
