"""Compiled networks: the C of `emit` built by the system's compiler and called from Python."""

from __future__ import annotations

import ctypes
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float, Num

from nttzoo._util import files
from nttzoo._util.libraries import shared_library
from nttzoo.codegen.source import Source
from nttzoo.data import InputSpec
from nttzoo.errors import OptionError, ShapeError

FLAGS = ("-std=c99", "-O3", "-march=native", "-ffp-contract=fast")

THREADS_FROM = 2_000_000  # multiply-adds


def usable_cores() -> int:
    """The number of cores this process may use: batch systems and containers often allow fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Compiled:
    """A compiled network: call it on a batch of inputs [n, ...] to get its outputs [n, outputs].

    Floats are assumed to be standardized; uint8 images are standardized first if the network has an `input_spec`.
    The examples of a batch are distributed over threads.

    Example:
      >>> run = nttzoo.compile("lenet300-mnist-1pct-global")
      >>> names = run.predict(images)  # uint8 [n, 28, 28, 1]
    """

    def __init__(
        self,
        library: Path,
        source: Source,
        input_shape: tuple[int, ...],
        threads: int,
        input_spec: InputSpec | None = None,
    ):
        self.input_spec = input_spec
        self.source = source
        self.input_shape = input_shape
        self.library = library
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._run = getattr(ctypes.CDLL(str(library)), f"{source.name}_run_batch")
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        self._run.restype = None
        self._arenas: list[np.ndarray] = []  # those not in use by a call

    def __repr__(self) -> str:
        shape, classes = ", ".join(map(str, self.input_shape)), self.input_spec.classes if self.input_spec else ()
        named = f" ({', '.join(classes)})" if 0 < len(classes) <= 10 else ""
        return f"<{self.source.name}: [n, {shape}] -> [n, {self.source.outputs}]{named}, threads: {self.threads}>"

    def __call__(self, inputs: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n outputs"]:
        inputs = np.asarray(inputs)
        if inputs.shape[1:] != self.input_shape:
            expected = ", ".join(map(str, self.input_shape))
            raise ShapeError(f"{self.source.name} takes inputs of shape [n, {expected}], got {list(inputs.shape)}.")
        if inputs.dtype == np.uint8 and self.input_spec is not None:
            inputs = np.asarray(self.input_spec.standardize(inputs))
        if inputs.dtype.kind != "f":
            raise ShapeError(
                f"{self.source.name} takes standardized floats, got {inputs.dtype}: "
                "`model.input_spec.standardize(images)` makes them of uint8 images."
            )
        inputs = np.ascontiguousarray(inputs, np.float32)
        outputs = np.empty((len(inputs), self.source.outputs), np.float32)
        # Dispatching work to threads takes tens of microseconds.
        if self._pool is None or len(inputs) < 2 or len(inputs) * self.source.work < THREADS_FROM:
            self._some(inputs, outputs, 0, len(inputs))
            return outputs
        edges = [len(inputs) * part // self.threads for part in range(self.threads + 1)]
        list(self._pool.map(partial(self._some, inputs, outputs), edges[:-1], edges[1:]))
        return outputs

    def predict(self, images: Num[np.ndarray, "n ..."]) -> list[str]:
        """Classifies images.

        Args:
          images: uint8 images, or standardized floats, [n, ...].

        Returns:
          The name of the class with the largest output, for each image.

        Raises:
          ShapeError: if the images do not have the network's input shape or type.
          OptionError: if the network's class names are not known.
        """
        if self.input_spec is None:
            raise OptionError(
                f"the class names of {self.source.name} are not known: take the argmax of its outputs, or compile a "
                "model that has an `input_spec`."
            )
        return [self.input_spec.classes[i] for i in self(images).argmax(-1)]

    def _some(self, inputs: np.ndarray, outputs: np.ndarray, begin: int, end: int) -> None:
        # Several threads may call at once: each takes a free arena.
        try:
            arena = self._arenas.pop()
        except IndexError:
            arena = aligned(self.source.batch_arena)
        first = inputs.ctypes.data + 4 * self.source.inputs * begin
        answer = outputs.ctypes.data + 4 * self.source.outputs * begin
        self._run(first, answer, end - begin, arena.ctypes.data)
        self._arenas.append(arena)


def aligned(size: int) -> np.ndarray:
    """Floats aligned to a cache line: loads that cross two lines take twice as long."""
    memory = np.zeros(size + 16, np.float32)
    skip = -memory.ctypes.data % 64 // 4
    return memory[skip : skip + size]


def build(
    source: Source,
    *,
    input_shape: tuple[int, ...],
    threads: int,
    cache: Path | None = None,
    input_spec: InputSpec | None = None,
) -> Compiled:
    """Compiles a source, unless it is cached, and loads it."""
    texts = {f"{source.name}.c": source.code, f"{source.name}.h": source.header}
    library = shared_library(source.name, texts, FLAGS, cache)
    return Compiled(library, source, input_shape, threads, input_spec)


def write(source: Source, folder: Path) -> tuple[Path, Path]:
    """Writes the C file and its header into a folder; returns their paths."""
    paths = folder / f"{source.name}.c", folder / f"{source.name}.h"
    for path, text in zip(paths, (source.code, source.header), strict=True):
        files.write_text(path, text)
    return paths
