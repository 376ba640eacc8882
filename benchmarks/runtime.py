"""Sparse networks in the runtimes that people deploy on: what of the theoretical speedup is left.

Each network is measured as ONNX in ONNX Runtime, OpenVINO and DeepSparse, and as C made by nttzoo, beside the dense
network of the same architecture. All in one run; those in this process take turns, DeepSparse follows in its own.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import milliseconds, run_peer
from nttzoo import architectures, codegen, export, zoo
from nttzoo._util import console
from nttzoo._util.provenance import origin
from nttzoo.sparsity import cost, pruning

BATCHES = (1, 64)
THREADS = (1, 2)
ROUNDS = 2
SWEEP = (0.01, 0.03, 0.05, 0.1, 0.2, 0.5)
# For how long a call is repeated in each round.
CALL_SECONDS = 0.2


@dataclass(frozen=True)
class Case:
    """A network to measure, and the ONNX file that it is measured from (dense initializers: all runtimes take them)."""

    name: str
    architecture: str
    density: float
    model: Any
    file: Path


# (case, batch, threads) -> a function that runs one batch
Runtime = Callable[[Case, int, int], Callable[[], Any]]


def _onnxruntime(case: Case, batch: int, threads: int) -> Callable[[], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(case.file, options, providers=["CPUExecutionProvider"])
    feed = {"images": _images(case, batch)}
    return lambda: session.run(None, feed)


def _openvino(case: Case, batch: int, threads: int) -> Callable[[], Any]:
    import openvino

    core = openvino.Core()
    model = core.read_model(case.file)
    images = _images(case, batch)
    model.reshape(list(images.shape))
    compiled = core.compile_model(model, "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"})
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(images))  # handing it over at each call costs milliseconds
    return request.infer


def _nttzoo(case: Case, batch: int, threads: int) -> Callable[[], Any]:
    compiled = codegen.compile(case.file, threads=threads)
    images = _images(case, batch)
    return lambda: compiled(images)


def _images(case: Case, batch: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(batch, *case.model.input_shape)).astype(np.float32)


def runtimes() -> dict[str, Runtime]:
    """Those that are installed here; DeepSparse runs in an environment of its own."""
    found: dict[str, Runtime] = {"onnxruntime": _onnxruntime}
    if importlib.util.find_spec("openvino"):
        found["openvino"] = _openvino
    return found | {"nttzoo_c": _nttzoo}


def run(names: list[str], *, peer_python: str | None) -> dict[str, Any]:
    """Measures published networks, or without names random masks of many densities; `peer_python`: DeepSparse's."""
    with tempfile.TemporaryDirectory() as folder:
        cases = _named(names, Path(folder)) if names else _sweep(Path(folder))
        rows = []
        with console.progress_bar() as bar:
            task = bar.add_task("runtimes", total=len(cases), note="")
            for case in cases:
                row = _measure(case, peer_python)
                rows.append(row)
                best = row["milliseconds"]["1"]["1"]
                bar.update(task, advance=1, note=f"{case.name}: {1000 * best['nttzoo_c']:.0f} us in C")
    versions = {"onnxruntime": _version("onnxruntime"), "openvino": _version("openvino")}
    versions["deepsparse"] = rows[0].get("deepsparse")
    return {
        "what": f"milliseconds per call by batch, threads and runtime; best of {ROUNDS} rounds in turns",
        "masks": "published" if names else "random, layerwise",
        "runtimes": versions,
        "cases": rows,
        **origin(),
    }


def _version(package: str) -> str | None:
    module = importlib.import_module(package) if importlib.util.find_spec(package) else None
    return getattr(module, "__version__", None)


def _named(names: list[str], folder: Path) -> list[Case]:
    cases = []
    for name in names:
        entry = zoo.info(name)
        model = zoo.load(name, weights="trained")
        cases.append(_case(name, entry.architecture, entry.density, model, folder))
    for architecture in dict.fromkeys(case.architecture for case in cases):
        cases.append(_dense(architecture, folder))
    return cases


def _sweep(folder: Path) -> list[Case]:
    cases = []
    for architecture in architectures.ARCHITECTURES:
        for density in SWEEP:
            model = architectures.create(architecture, rngs=0)
            pruning.prune(model, "random", density=density, rngs=0)
            cases.append(_case(f"{architecture} {density:g}", architecture, density, model, folder))
        cases.append(_dense(architecture, folder))
    return cases


def _dense(architecture: str, folder: Path) -> Case:
    return _case(f"{architecture} dense", architecture, 1.0, architectures.create(architecture, rngs=0), folder)


def _case(name: str, architecture: str, density: float, model: Any, folder: Path) -> Case:
    model.eval()
    file = folder / f"{name.replace(' ', '-')}.onnx"
    export.export_onnx(model, file, sparse=False)
    return Case(name, architecture, density, model, file)


def _measure(case: Case, peer_python: str | None) -> dict[str, Any]:
    counted = cost.speedup(case.model).to_dict()
    source = codegen.compile(case.file, threads=1).source
    times: dict[str, dict[str, dict[str, float]]] = {}
    for batch in BATCHES:
        for threads in THREADS:
            calls = {name: make(case, batch, threads) for name, make in runtimes().items()}
            best = dict.fromkeys(calls, float("inf"))
            for _ in range(ROUNDS):
                for name, call in calls.items():
                    once = milliseconds(call, repeats=3)
                    repeats = int(min(max(1000 * CALL_SECONDS / max(once, 1e-3), 3), 2000))
                    best[name] = min(best[name], milliseconds(call, repeats=repeats))
            if peer_python:
                arguments = [str(case.file), str(batch), str(threads), "50" if batch > 1 else "500"]
                peer = run_peer("deepsparse_run", *arguments, python=peer_python)
                best["deepsparse"] = peer["milliseconds"]
            times.setdefault(str(batch), {})[str(threads)] = {name: round(value, 5) for name, value in best.items()}
    return {
        "name": case.name,
        "architecture": case.architecture,
        "density": case.density,
        "multiply_adds": counted["total"],
        "theoretical": counted["theoretical"],
        "without_dead": counted["without_dead"],
        **({"deepsparse": peer["version"]} if peer_python else {}),
        "c_table_bytes": source.table_bytes,
        "c_arena_bytes": 4 * source.arena,
        "milliseconds": times,
    }


def tables(result: dict[str, Any]) -> str:
    """Microseconds per image in each runtime, and how many times faster than the dense network in ONNX Runtime."""
    return "\n\n".join(_table(result, batch=batch, threads=threads) for batch in BATCHES for threads in THREADS)


def _table(result: dict[str, Any], *, batch: int, threads: int) -> str:
    dense = {row["architecture"]: row for row in result["cases"] if row["density"] == 1}
    names = list(result["cases"][0]["milliseconds"][str(batch)][str(threads)])
    rows = []
    for row in result["cases"]:
        times = row["milliseconds"][str(batch)][str(threads)]
        reference = dense[row["architecture"]]["milliseconds"][str(batch)][str(threads)]["onnxruntime"]
        cells = [f"{1000 * times[name] / batch:.1f} ({reference / times[name]:.1f}x)" for name in names]
        rows.append((row["name"], f"{row['theoretical']:.0f}x", *cells))
    title = f"microseconds per image, batch {batch}, threads {threads} (times faster than dense in ONNX Runtime)"
    return console.table(title, ("network", "theory", *names), rows)
