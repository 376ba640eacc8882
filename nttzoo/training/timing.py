"""How long a step takes in each engine: measured once per network, mask density, batch and machine, and kept."""

from __future__ import annotations

import hashlib
import math
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import msgspec
import numpy as np
from flax import nnx

from nttzoo._util import files, schema
from nttzoo._util.provenance import processor
from nttzoo._util.schema import EngineTimes
from nttzoo.codegen import build
from nttzoo.errors import FileError, RunError
from nttzoo.sparsity import masks

CLASSES = 10  # of densities that share a measurement
WARM_UP = 3  # calls: compiling, then every number of threads
ROUNDS, SECONDS = 3, 0.1  # of each engine, in turns


def place_of(library: Path, model: nnx.Module, batch_size: int) -> Path:
    """The file for the times of networks with this library and, layer by layer, about as many surviving weights."""
    layers = [round(CLASSES * layer.density) for layer in masks.density_report(model).layers]
    about = (library.stem, layers, batch_size, build.usable_cores(), processor(), jax.__version__)
    key = hashlib.sha256(repr(about).encode()).hexdigest()
    return library.with_name(f"engine-{key[:32]}.json")


def read(place: Path) -> EngineTimes | None:
    """The times in a file; None if there is none, or it is damaged."""
    with suppress(FileError):
        return msgspec.convert(schema.read(place, EngineTimes), EngineTimes)
    return None


def keep(place: Path, times: EngineTimes) -> None:
    """Writes a file of times, if it can be written."""
    with suppress(FileError, RunError):
        files.private_folder(place.parent)
        files.write_text(place, files.to_json(msgspec.to_builtins(times)))


def measure(compiled: Any, other: Any, order: np.ndarray) -> EngineTimes:
    """Takes a few steps with the trainers of both engines, in turns, and leaves both as they were.

    Raises:
      TrainingError: if a loss is not finite.
    """
    trainers = compiled, other
    before = [trainer.state() for trainer in trainers]
    for trainer in trainers:
        trainer.begin_epoch(order)
        for _ in range(WARM_UP):
            trainer.run(0, 1)
    steps = [min(len(order), math.ceil(SECONDS / _seconds(trainer, 1))) for trainer in trainers]
    best = [math.inf, math.inf]
    for _ in range(ROUNDS):
        for i, trainer in enumerate(trainers):
            best[i] = min(best[i], _seconds(trainer, steps[i]) / steps[i])
    for trainer, state in zip(trainers, before, strict=True):
        trainer.restore(state)
    return EngineTimes(*(1000 * seconds for seconds in best))


def _seconds(trainer: Any, steps: int) -> float:
    began = time.perf_counter()
    trainer.run(0, steps)
    return time.perf_counter() - began
