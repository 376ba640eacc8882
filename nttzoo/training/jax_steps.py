"""Training steps in JAX: many of them inside one jitted loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Integer

from nttzoo.data import Dataset, Labeled, standardize
from nttzoo.nn import merge_params, split_params
from nttzoo.training.config import Loss

EVALUATION_BATCH = 500


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The arrays that one step hands to the next; loss and correct answers are summed over an epoch."""

    params: Any
    rest: Any
    optimizer: Any
    loss: Any
    correct: Any


def make_evaluator(model: nnx.Module, data: Dataset) -> Callable[[Any, Any, Labeled], float]:
    """evaluate(params, rest, part) -> accuracy in evaluation mode; compiled once, whatever the parameters."""
    moments = jnp.asarray(data.mean), jnp.asarray(data.std)
    frozen = nnx.clone(model)
    frozen.eval()
    graph, _, _ = split_params(frozen)

    @jax.jit
    def correct(params: Any, rest: Any, images: Array, labels: Array) -> Array:
        logits = merge_params(graph, params, rest)(standardize(images, *moments))
        return (logits.argmax(-1) == labels).sum()

    def evaluate(params: Any, rest: Any, part: Labeled) -> float:
        if not len(part):
            return float("nan")
        hits = 0
        for start in range(0, len(part), EVALUATION_BATCH):
            chosen = slice(start, start + EVALUATION_BATCH)
            hits += int(correct(params, rest, part.images[chosen], part.labels[chosen]))
        return hits / len(part)

    return evaluate


def start(params: Any, rest: Any, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    return TrainState(params, rest, optimizer.init(params), jnp.zeros(()), jnp.zeros((), jnp.int32))


def run_steps(
    graph: Any,
    optimizer: optax.GradientTransformation,
    loss: Loss,
    state: TrainState,
    images: Array,
    labels: Array,
    moments: tuple[Array, Array],
    order: Integer[Array, "steps size"],
    start: int | Array,
    stop: int | Array,
) -> TrainState:
    """Steps start ... stop - 1 of an epoch. The bounds are traced: chunks of any length share one compilation."""

    def objective(params: Any, rest: Any, x: Array, y: Array) -> tuple[Array, tuple[Any, Array]]:
        model = merge_params(graph, params, rest)
        logits = model(x)
        # The forward pass may have moved on random streams and batch statistics.
        _, _, rest = split_params(model)
        return loss(logits, y).mean(), (rest, (logits.argmax(-1) == y).sum())

    def step(i: Array, state: TrainState) -> TrainState:
        chosen = order[i]
        x, y = standardize(images[chosen], *moments), labels[chosen]
        gradient = jax.value_and_grad(objective, has_aux=True)
        (value, (rest, correct)), grads = gradient(state.params, state.rest, x, y)
        updates, optimizer_state = optimizer.update(grads, state.optimizer, state.params)
        params = optax.apply_updates(state.params, updates)
        return TrainState(params, rest, optimizer_state, state.loss + value, state.correct + correct)

    return jax.lax.fori_loop(start, stop, step, state)
