"""Training steps: ours, compiled and in JAX, against PyTorch dense and SparseProp, over density."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from benchmarks.measure import PeerError, milliseconds, run_peer
from nttzoo import architectures, training
from nttzoo._util import console
from nttzoo._util.provenance import origin
from nttzoo.codegen.training import compile_training
from nttzoo.nn import split_params
from nttzoo.sparsity.cost import speedup
from nttzoo.sparsity.pruning import prune

BATCH, THREADS = 64, 2
JAX_STEPS = 8
SECONDS = 1.0  # of each measurement
ROUNDS = 1
DENSITIES = (0.01, 0.03, 0.05, 0.1, 0.3, 1.0)
SPARSEPROP = (0.01, 0.03, 0.05)


def network(name: str, density: float, scheme: str = "layerwise") -> nnx.Module:
    """A pruned network: a random mask, or under the global scheme one by SNIP on random labels."""
    model = architectures.create(name, rngs=0)
    if density == 1:
        return model
    if scheme == "layerwise":
        return prune(model, "random", density=density, rngs=0)
    rng = np.random.default_rng(0)
    images = rng.normal(size=(128, *model.input_shape)).astype(np.float32)
    batch = jnp.asarray(images), jnp.asarray(rng.integers(0, 10, 128))
    return prune(model, "snip", density=density, scheme=scheme, batch=batch)


def compiled_step(model: Any, *, threads: int = THREADS, batch: int = BATCH) -> dict[str, float]:
    """Milliseconds of a compiled step, best and median of many calls, on uint8 images."""
    step = compile_training(model, threads=threads)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8 * batch, *model.input_shape), np.uint8)
    levels = np.linspace(-1, 1, 256, dtype=np.float32)[None].repeat(model.input_shape[-1], 0)
    data = step.batch(images, rng.integers(0, 10, len(images)), np.ascontiguousarray(levels))
    order = np.arange(8 * batch).reshape(8, batch)
    step.run(data, order)
    times: list[float] = []
    while sum(times) < SECONDS:
        began = time.perf_counter()
        step.run(data, order)
        times.append(time.perf_counter() - began)
    arena = step._library.source.arena * 4 * step._library.source.block
    return {
        "ms": 1000 * min(times) / 8,
        "median_ms": 1000 * float(np.median(times)) / 8,
        "arena_bytes_per_thread": arena,
    }


def jax_step(name: str = "conv4") -> float:
    """Milliseconds per step of the loop that `fit` runs in JAX, on random images."""
    model = architectures.create(name, rngs=0)
    graph, params, rest = split_params(model)
    optimizer = optax.adam(1e-3)
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.integers(0, 256, (JAX_STEPS * BATCH, *model.input_shape), np.uint8))
    labels = jnp.asarray(rng.integers(0, 10, JAX_STEPS * BATCH, np.int32))
    order = jnp.arange(JAX_STEPS * BATCH).reshape(JAX_STEPS, BATCH)
    channels = model.input_shape[-1]
    moments = jnp.full(channels, 0.5), jnp.full(channels, 0.25)
    state = training.start(params, rest, optimizer)
    run = jax.jit(partial(training.run_steps, graph, optimizer, training.LOSSES["cross_entropy"]))
    call = lambda: jax.block_until_ready(run(state, images, labels, moments, order, 0, JAX_STEPS))  # noqa: E731
    return milliseconds(call, repeats=3) / JAX_STEPS


def run(*, peer_python: str) -> dict[str, Any]:
    """All networks and densities in turns with the peers; the best of each, and the ratios."""
    cases = [(name, density, "layerwise") for name in ("conv4", "lenet5", "lenet300") for density in DENSITIES]
    cases += [("conv4", density, "global") for density in (0.01, 0.03, 0.05)]
    models = {case: network(*case) for case in cases}
    rows: list[dict[str, Any]] = [
        {"network": name, "density": density, "scheme": scheme, "multiply_adds": speedup(models[case]).total.sparse}
        for case in cases
        for name, density, scheme in [case]
    ]
    peers: dict[str, dict[str, Any]] = {}
    with console.progress_bar() as bar:
        task = bar.add_task("training steps", total=ROUNDS * len(cases), note="")
        for _ in range(ROUNDS):
            for name in ("conv4", "lenet5", "lenet300"):
                _keep_best(peers, f"torch {name}", run_peer("torch_train", name, "2", str(BATCH), python=peer_python))
            for case, row in zip(cases, rows, strict=True):
                seen = compiled_step(models[case])
                row |= seen if seen["ms"] < row.get("ms", np.inf) else {}
                if case[0] == "conv4" and case[2] == "layerwise" and case[1] in SPARSEPROP:
                    key = f"sparseprop conv4 {case[1]:g}"
                    try:
                        peer = run_peer("torch_train", "conv4", "2", str(BATCH), str(case[1]), python=peer_python)
                        _keep_best(peers, key, peer)
                    except PeerError as error:
                        peers[key] = {"error": str(error)}
                bar.update(task, advance=1, note=f"{case[0]} {case[1]:.0%} {case[2]}: {row['ms']:.2f} ms")
    for row in rows:
        row["torch_ms"] = peers[f"torch {row['network']}"]["milliseconds"]
        row["times_torch"] = row["torch_ms"] / row["ms"]
        peer = peers.get(f"sparseprop {row['network']} {row['density']:g}", {})
        if row["scheme"] == "layerwise" and "milliseconds" in peer:
            row["sparseprop_ms"] = peer["milliseconds"]
            row["times_sparseprop"] = peer["milliseconds"] / row["ms"]
    one = models["conv4", 0.01, "layerwise"]
    growth = {
        "threads": {str(threads): compiled_step(one, threads=threads)["ms"] for threads in (1, 2)},
        "batch": {str(batch): compiled_step(one, batch=batch)["ms"] for batch in (16, 32, 64, 128, 256)},
    }
    return {
        "what": f"training step, batch {BATCH}, Adam, dropout, {THREADS} threads; best of {ROUNDS} rounds in turns",
        "rows": rows,
        "jax_conv4_ms": jax_step(),
        "growth_conv4_1pct": growth,
        "peers": peers,
        **origin(),
    }


def _keep_best(peers: dict[str, dict[str, Any]], key: str, seen: dict[str, Any]) -> None:
    if seen["milliseconds"] < peers.get(key, {}).get("milliseconds", np.inf):
        peers[key] = seen


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    heads = ("network", "scheme", "kept", "ms", "PyTorch", "times", "SparseProp", "times")
    lines = []
    for row in result["rows"]:
        other = ("-", "-")
        if "sparseprop_ms" in row:
            other = (f"{row['sparseprop_ms']:.1f}", f"{row['times_sparseprop']:.1f}x")
        ours = (f"{row['ms']:.3g}", f"{row['torch_ms']:.3g}", f"{row['times_torch']:.1f}x")
        lines.append((row["network"], row["scheme"], f"{row['density']:.0%}", *ours, *other))
    return console.table("training step", heads, lines)
