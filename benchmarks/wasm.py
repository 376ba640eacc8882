"""Sparse networks as WebAssembly beside onnxruntime-web: bytes to fetch, time to load, time per image."""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.measure import PEERS, PeerError
from nttzoo import export, zoo
from nttzoo._util import console
from nttzoo._util.provenance import origin
from nttzoo.codegen import wasm

NAMES = ("lenet300-mnist-1pct-global", "lenet5-mnist-3pct-global", "conv4-cifar10-1pct-layerwise")
OURS, PEER = "nttzoo_wasm", "onnxruntime_web"


def run(names: list[str], *, peer_node: str) -> dict[str, Any]:
    """Measures networks in Node; `peer_node` is a folder in which `npm install onnxruntime-web` was run."""
    cases = [_measure(name, peer_node) for name in names or NAMES]
    what = "milliseconds per call by batch and runtime, one thread, in Node; best of 100 short rounds in turns"
    sizes = "module and script; onnxruntime-web: its wasm (simd, threaded), its script for that, and the ONNX file"
    return {"what": what, "bytes": sizes, "cases": cases, **origin()}


def _measure(name: str, peer_node: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        wasm.export_wasm(name, Path(folder) / "net.wasm")
        # onnxruntime-web does not read sparse initializers.
        export.export_onnx(zoo.load(name, weights="trained"), Path(folder) / "model.onnx", sparse=False)
        command = ["node", str(PEERS / "wasm_run.mjs"), folder, peer_node]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(f"node failed: {done.stderr.strip()[-600:]}")
    return {"name": name, **json.loads(done.stdout)}


def table(result: dict[str, Any]) -> str:
    """Kilobytes, milliseconds to load, microseconds per image."""
    rows = []
    for case in result["cases"]:
        for runtime in (OURS, PEER):
            times = [f"{1000 * case['milliseconds'][batch][runtime] / int(batch):.1f}" for batch in ("1", "64")]
            size = f"{case['bytes'][runtime] / 1000:,.0f}"
            rows.append((case["name"], runtime, size, f"{case['load_milliseconds'][runtime]:.0f}", *times))
    columns = ("network", "runtime", "kB", "load, ms", "us per image, batch 1", "batch 64")
    return console.table("WebAssembly in Node, one thread", columns, rows)
