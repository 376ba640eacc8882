"""How far a training step is from what the machine can do: multiply-adds on registers, and bytes that must move."""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.measure import PEERS
from nttzoo._util import libraries
from nttzoo.codegen import build
from nttzoo.codegen.training import resolve, trace
from nttzoo.codegen.training.graph import Activation, Affine, Normalization

SUMS = 12  # as in limits.c
FLAGS = ("-std=gnu99", "-O3", "-march=native", "-ffp-contract=fast")


def machine(threads: int, *, lanes: int, bytes_of_block: int) -> dict[str, float]:
    """Multiply-adds and bytes per second of all threads together; each reads memory of the size of a step's arena."""
    text = (PEERS / "limits.c").read_text().replace("LANES", str(lanes))
    library = ctypes.CDLL(str(libraries.shared_library("limits", {"limits.c": text}, FLAGS)))
    library.read_memory.argtypes = [ctypes.c_void_p, ctypes.c_long]
    rounds, count = 5_000_000, bytes_of_block // 4
    memory = [build.aligned(count) for _ in range(threads)]

    def rate(work: Any, amount: float) -> float:
        best = 0.0
        with ThreadPoolExecutor(threads) as pool:
            for _ in range(5):
                began = time.perf_counter()
                list(pool.map(work, range(threads)))
                best = max(best, threads * amount / (time.perf_counter() - began))
        return best

    def read(thread: int) -> None:
        for _ in range(8):
            library.read_memory(memory[thread].ctypes.data, count)

    return {
        "multiply_adds_per_second": rate(lambda _: library.multiply_adds(ctypes.c_long(rounds)), rounds * SUMS * lanes),
        "bytes_per_second": rate(read, 8 * bytes_of_block),
    }


def bytes_of_step(model: Any, batch: int) -> int:
    """The activations and gradients that the layers of a step read and write, each once for each layer."""
    graph = resolve.resolve(trace.trace(model, model.input_shape, dropout=True).program)
    floats = 0
    for node in graph.nodes:
        inputs = sum(source.memory() for source in node.sources)
        floats += inputs + node.target.memory()
        floats += node.target.memory(gradient=True)
        floats += sum(source.memory(gradient=True) for source in node.sources if source.has_gradient)
        floats += inputs if isinstance(node, Affine | Normalization | Activation) else 0
        if isinstance(node, Affine) and node.inner is not None:
            floats += 2 * node.inner.memory(gradient=True)
    return 4 * batch * floats
