"""A Conv-4 training step against PyTorch's."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.measure import milliseconds, run_peer
from nttzoo import architectures, training
from nttzoo._util import console
from nttzoo._util.provenance import origin
from nttzoo.nn import split_params

BATCH = 64
STEPS = 8
ROUNDS = 3


def training_step(name: str = "conv4") -> float:
    """Milliseconds per step of the loop that `fit` runs, on random images."""
    model = architectures.create(name, rngs=0)
    graph, params, rest = split_params(model)
    optimizer = optax.adam(1e-3)
    rng = np.random.default_rng(0)
    images = jnp.asarray(rng.integers(0, 256, (STEPS * BATCH, *model.input_shape), np.uint8))
    labels = jnp.asarray(rng.integers(0, 10, STEPS * BATCH, np.int32))
    order = jnp.arange(STEPS * BATCH).reshape(STEPS, BATCH)
    channels = model.input_shape[-1]
    moments = jnp.full(channels, 0.5), jnp.full(channels, 0.25)
    state = training.start(params, rest, optimizer)
    run = jax.jit(partial(training.run_steps, graph, optimizer, training.LOSSES["cross_entropy"]))
    return (
        milliseconds(lambda: jax.block_until_ready(run(state, images, labels, moments, order, 0, STEPS)), repeats=3)
        / STEPS
    )


def run(*, peer_python: str) -> dict[str, Any]:
    """Ours and PyTorch's step in turns; the best of each, and the ratio."""
    ours, theirs = [], []
    with console.progress_bar() as bar:
        task = bar.add_task("conv4 training step", total=ROUNDS, note="")
        for _ in range(ROUNDS):
            ours.append(training_step())
            peer = run_peer("torch_conv4", "2", str(BATCH), python=peer_python)
            theirs.append(peer["milliseconds"])
            bar.update(task, advance=1, note=f"ours {ours[-1]:.0f} ms, PyTorch {theirs[-1]:.0f} ms")
    return {
        "what": f"Conv-4 training step, batch {BATCH}, Adam, dropout; best of {ROUNDS} rounds in turns",
        "nttzoo_ms": min(ours),
        "torch_ms": min(theirs),
        "ratio": min(ours) / min(theirs),
        "rounds": {"nttzoo_ms": ours, "torch_ms": theirs},
        "peer": f"torch {peer['version']}",
        **origin(),
    }
