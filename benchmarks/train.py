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

from benchmarks import limits
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
PAPERS = ("conv4", "lenet5", "lenet300")
OTHERS = ("resnet20", "ds_cnn")  # beside JAX only
DENSITIES = (0.01, 0.03, 0.05, 0.1, 0.3, 0.5, 0.75, 1.0)
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
    library = step._library
    scratch = [array.nbytes for arrays in library._scratch.values() for array in arrays]
    return {
        "ms": 1000 * min(times) / 8,
        "median_ms": 1000 * float(np.median(times)) / 8,
        "arena_bytes_per_thread": library.source.arena * 4 * library.source.block,
        "memory_bytes": sum(scratch),  # arenas, sums of gradients: all but images, weights and moments
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
    """All networks and densities, the peers, and the machine itself; the best of many calls each."""
    cases = [(name, density, "layerwise") for name in PAPERS for density in DENSITIES]
    cases += [("conv4", density, "global") for density in (0.01, 0.03, 0.05)]
    cases += [(name, density, "layerwise") for name in OTHERS for density in (0.01, 0.05, 1.0)]
    rows: list[dict[str, Any]] = []
    peers: dict[str, dict[str, Any]] = {}
    jax_ms: dict[str, float] = {}
    with console.progress_bar() as bar:
        task = bar.add_task("training steps", total=len(cases), note="")
        for case in cases:
            name, density, scheme = case
            if name not in jax_ms:
                jax_ms[name] = jax_step(name)
            if name in PAPERS and name not in peers:
                peers[name] = run_peer("torch_train", name, str(THREADS), str(BATCH), python=peer_python)
            model = network(*case)
            row: dict[str, Any] = {"network": name, "density": density, "scheme": scheme, **compiled_step(model)}
            row["multiply_adds"] = speedup(model).total.sparse
            row["jax_ms"] = jax_ms[name]
            if name in peers:
                row["torch_ms"] = peers[name]["milliseconds"]
                row["times_torch"] = row["torch_ms"] / row["ms"]
            if name == "conv4" and scheme == "layerwise" and density in SPARSEPROP:
                row |= _sparseprop(density, row["ms"], peer_python)
            rows.append(row)
            bar.update(task, advance=1, note=f"{name} {density:.0%} {scheme}: {row['ms']:.2f} ms")
    return {
        "what": f"training step, batch {BATCH}, Adam, dropout, {THREADS} threads; best of {SECONDS:g} s of calls",
        "rows": rows,
        "growth_conv4": _growth(),
        "limit": _limit(rows),
        "versions_of_peers": {name: peer["version"] for name, peer in peers.items()},
        **origin(),
    }


def _sparseprop(density: float, ms: float, peer_python: str) -> dict[str, Any]:
    arguments = ("conv4", str(THREADS), str(BATCH), str(density))
    try:
        peer = run_peer("torch_train", *arguments, python=peer_python)
    except PeerError as error:
        return {"sparseprop_error": str(error)}
    return {
        "sparseprop_ms": peer["milliseconds"],
        "times_sparseprop": peer["milliseconds"] / ms,
        "sparseprop_version": peer["version"],
    }


def _growth() -> dict[str, Any]:
    """Steps of Conv-4 with 1 % and 10 % of its weights over threads and batch: times and memory."""
    grown: dict[str, Any] = {}
    for density in (0.01, 0.1):
        model = network("conv4", density)
        grown[f"{density:g}"] = {
            "threads": {str(threads): compiled_step(model, threads=threads) for threads in (1, 2)},
            "batch": {str(batch): compiled_step(model, batch=batch) for batch in (1, 16, 32, 64, 100, 128, 256)},
        }
    return grown


def _limit(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the machine can do, and how close each layerwise step comes to it.

    A cycle of a core is taken for two vectors of multiply-adds, as many as the machine does on registers at best.
    """
    own = [row for row in rows if (row["network"], row["scheme"]) == ("conv4", "layerwise")]
    block = compile_training(network("conv4", 0.01))._library.source.block
    found: dict[str, Any] = limits.machine(THREADS, lanes=block, bytes_of_block=own[0]["arena_bytes_per_thread"])
    moved = limits.bytes_of_step(network("conv4", 1.0), BATCH)
    found |= {"conv4_bytes": moved, "conv4_bytes_ms": 1000 * moved / found["bytes_per_second"]}
    for name in PAPERS:
        found[name] = {}
        for row in rows:
            if (row["network"], row["scheme"]) != (name, "layerwise"):
                continue
            # Forward, and the gradients of weights and of inputs.
            products = 3 * BATCH * row["multiply_adds"]
            floor = 1000 * products / found["multiply_adds_per_second"]
            share = floor / row["ms"]
            found[name][f"{row['density']:g}"] = {
                "multiply_adds_ms": floor,
                "of_the_limit": share,
                "multiply_adds_per_cycle": share * 2 * block,
            }
    return found


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    heads = ("network", "scheme", "kept", "ms", "JAX", "PyTorch", "times", "SparseProp", "times")
    lines = []
    for row in result["rows"]:
        other = ("-", "-")
        if "sparseprop_ms" in row:
            other = (f"{row['sparseprop_ms']:.1f}", f"{row['times_sparseprop']:.1f}x")
        dense = ("-", "-")
        if "torch_ms" in row:
            dense = (f"{row['torch_ms']:.3g}", f"{row['times_torch']:.1f}x")
        ours = (f"{row['ms']:.3g}", f"{row['jax_ms']:.3g}", *dense)
        lines.append((row["network"], row["scheme"], f"{row['density']:.0%}", *ours, *other))
    return console.table("training step", heads, lines)
