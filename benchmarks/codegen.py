"""What each thing that the C generator does for speed is worth: networks with all of it, and without one at a time."""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.measure import PEERS, milliseconds
from nttzoo import architectures, codegen, export
from nttzoo._util import console, libraries
from nttzoo._util.provenance import origin
from nttzoo.codegen import build
from nttzoo.sparsity import pruning

DENSITIES = (0.01, 0.05)
BATCH = 64
ROUNDS = 5
CHOICES = tuple(field.name for field in fields(codegen.Choices))
# Of Conv-4: input channels, output channels, side of the output planes
GROUPED_LAYERS = {"conv2": (64, 64, 28), "conv3": (64, 128, 12), "conv4": (128, 128, 10)}
GROUPED_DENSITIES = (0.01, 0.05, 0.1, 0.3)


def run() -> dict[str, Any]:
    """Random masks, layer by layer; one thread."""
    cases = [(name, density) for name in architectures.ARCHITECTURES for density in DENSITIES]
    rows = []
    with console.progress_bar() as bar:
        task = bar.add_task("networks as C", total=len(cases), note="")
        for name, density in cases:
            rows.append(_measure(name, density))
            bar.update(task, advance=1)
    return {
        "what": f"microseconds per image in a batch of {BATCH}, best of {ROUNDS} rounds in turns; without each choice",
        "cases": rows,
        "grouping": {
            "what": "a layer plane by plane, and in pairs of planes that load the inputs which they share once",
            "cases": _grouping(),
        },
        **origin(),
    }


def _measure(architecture: str, density: float) -> dict[str, Any]:
    model = architectures.create(architecture, rngs=0)
    pruning.prune(model, "random", density=density, rngs=0)
    model.eval()
    images = np.random.default_rng(0).normal(size=(BATCH, *model.input_shape)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "network.onnx"
        export.export_onnx(model, file, sparse=False)
        ways = {"all": codegen.Choices(), **{name: codegen.Choices(**{name: False}) for name in CHOICES}}
        built = {way: _compile(file, choices) for way, choices in ways.items()}
    best = dict.fromkeys(built, float("inf"))
    for _ in range(ROUNDS):
        for way, network in built.items():
            best[way] = min(best[way], milliseconds(partial(network, images), repeats=20))
    times = {way: round(1000 * value / BATCH, 3) for way, value in best.items()}
    return {
        "architecture": architecture,
        "density": density,
        "microseconds": times.pop("all"),
        "microseconds_without": times,
        "arena_bytes": 4 * built["all"].source.arena,
        "arena_bytes_without": {name: 4 * built[name].source.arena for name in CHOICES},
    }


def _grouping() -> list[dict[str, Any]]:
    """Runs peers/grouping.c, which is no part of the generator: see what it measures there."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "grouping")
        flags = [flag for flag in build.FLAGS if flag not in ("-shared", "-fPIC")]
        subprocess.run([*libraries.find_compiler(), *flags, str(PEERS / "grouping.c"), "-o", program], check=True)
        for layer, sizes in GROUPED_LAYERS.items():
            for density in GROUPED_DENSITIES:
                arguments = [program, *map(str, sizes), str(density)]
                printed = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
                rows.append({"layer": layer, "density": density, **json.loads(printed)})
    return rows


def tables(result: dict[str, Any]) -> str:
    """How much longer without each choice, and how much faster in pairs."""
    rows = []
    for case in result["cases"]:
        own = case["microseconds"]
        cells = [f"{case['microseconds_without'][name] / own:.2f}x" for name in CHOICES]
        rows.append((f"{case['architecture']} {case['density']:.0%}", f"{own:.2f}", *cells))
    first = console.table("microseconds per image; times as long without", ("network", "all", *CHOICES), rows)
    rows = [
        (
            f"{case['layer']} {case['density']:.0%}",
            f"{case['loads_saved']:.1%}",
            f"{case['alone_microseconds'] / case['pairs_microseconds']:.2f}x",
        )
        for case in result["grouping"]["cases"]
    ]
    return f"{first}\n\n{console.table('planes in pairs', ('layer', 'loads saved', 'faster'), rows)}"


def _compile(file: Path, choices: codegen.Choices) -> codegen.Compiled:
    source, shape = codegen.source_of(onnx.load(file), choices=choices)
    return build.build(source, input_shape=shape, threads=1)
