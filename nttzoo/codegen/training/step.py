"""`compile_training`: a compiled training step as an object, for loops of one's own and for `nttzoo.fit`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Float, Integer

from nttzoo import export, nn
from nttzoo._util.checks import check_seed
from nttzoo.codegen import build
from nttzoo.codegen.training import graph, library, source, tables, trace
from nttzoo.codegen.training.library import UpdateRule
from nttzoo.errors import ExportError, OptionError, ShapeError, TrainingError

FLAGS = ("-std=gnu99", "-O3", "-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")
# Gradients beside JAX's, the largest difference relative to the largest entry, when a library is first used.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Batch:
    """Images and labels that stay where they are while steps pick from them."""

    images: np.ndarray
    labels: np.ndarray | None
    levels: np.ndarray | None = None  # [channels, 256]: the float of each level of a uint8 image


def compile_training(
    model: nnx.Module,
    *,
    optimizer: str | UpdateRule = "adam",
    learning_rate: float = 1e-3,
    loss: str = "cross_entropy",
    dropout: bool = True,
    seed: int = 0,
    threads: int | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> TrainingStep:
    """Compiles a training step for a model; it costs what the surviving weights cost.

    Args:
      model: an NNX model of Linear and Conv layers, pooling, GroupNorm, dropout and elementwise functions. It is not
        changed; its masks stay as they are now.
      optimizer: "adam", "sgd", or an `UpdateRule`.
      learning_rate: of every step, unless a call says otherwise.
      loss: "cross_entropy" or "squared".
      dropout: whether layers of dropout are active.
      seed: of dropout.
      threads: how many share the images of a batch; the results are the same bits for any number (default: all cores).
      input_shape: of one input, if the model does not know.

    Returns:
      A step: `step(images, labels)` trains on a batch and returns its loss.

    Raises:
      ExportError: if there is no C compiler, or the model has an operation without a backward rule.

    Example:
      >>> step = nttzoo.compile_training(nttzoo.load("lenet300-mnist-1pct-global"))
      >>> losses = [step(images, labels) for images, labels in batches]
    """
    rule = UpdateRule(kind=optimizer) if isinstance(optimizer, str) else optimizer
    if rule.kind not in library.RULES:
        raise OptionError(f"optimizer {rule.kind!r} is not one of {', '.join(library.RULES)}.")
    if loss not in library.LOSSES:
        raise OptionError(f"loss {loss!r} is not one of {', '.join(library.LOSSES)}.")
    if not learning_rate > 0:
        raise OptionError(f"learning_rate is {learning_rate}; it must be positive.")
    threads = os.cpu_count() or 1 if threads is None else threads
    if not isinstance(threads, int) or threads < 1:
        raise OptionError(f"threads is {threads!r}; it must be a whole number, 1 or more.")
    check_seed(seed)
    shape = export.input_shape_of(model, input_shape)
    program, parameters = trace.trace(model, shape, dropout=dropout)
    resolved = graph.resolve(program)
    block = _block()
    text = source.host_source(resolved, block=block, channels=shape[-1])
    path = build.shared_library("training", {"training.c": text.code}, FLAGS)
    made = tables.make(resolved, parameters.survivors(model))
    step = TrainingStep(
        library.Library(path, text, made), parameters, model, rule, learning_rate, loss, seed, threads, shape
    )
    checked = path.with_suffix(".checked")
    if not checked.exists():
        _check_gradient(step, model, shape)
        checked.touch()
    return step


class TrainingStep:
    """A training step: calling it trains on a batch. Weights and optimizer state are its own."""

    def __init__(
        self,
        compiled: library.Library,
        parameters: trace.Parameters,
        model: nnx.Module,
        rule: UpdateRule,
        learning_rate: float,
        loss: str,
        seed: int,
        threads: int,
        input_shape: tuple[int, ...],
    ):
        self.input_shape = input_shape
        self.threads = threads
        self.learning_rate = learning_rate
        self._library = compiled
        self._parameters = parameters
        self._model = nnx.clone(model)
        self._rule, self._loss, self._seed = rule, loss, seed
        self._trained = compiled.tables.parameters
        theta = parameters.flatten(model)[self._trained].astype(np.float32)
        self._memory = library.Memory.start(theta)

    @property
    def steps(self) -> int:
        """How many steps it has taken."""
        return self._memory.steps

    def __call__(
        self,
        images: Float[np.ndarray, "n ..."],
        labels: Integer[np.ndarray, " n"],
        *,
        learning_rate: float | None = None,
    ) -> float:
        """Trains on one batch of standardized images; returns its mean loss before the update.

        Raises:
          ShapeError: if images or labels do not fit the model.
          TrainingError: if the loss is not finite; the weights stay as they were.
        """
        batch = self.batch(images, labels)
        order = np.arange(len(batch.images))[None]
        return float(self.run(batch, order, rates=[learning_rate or self.learning_rate])[0][0])

    def batch(self, images: Any, labels: Any, levels: np.ndarray | None = None) -> Batch:
        """Images and labels, checked once, for `run`."""
        images = np.asarray(images)
        if images.dtype.kind in "biu" and levels is None:
            raise ShapeError(
                f"the step takes standardized floats, got {images.dtype}: "
                "`model.input_spec.standardize(images)` makes them."
            )
        images = np.ascontiguousarray(images, np.float32 if levels is None else np.uint8)
        if images.shape[1:] != self.input_shape or not len(images):
            expected = ", ".join(map(str, self.input_shape))
            raise ShapeError(f"the step takes images of shape [n, {expected}], got {list(images.shape)}.")
        if levels is None and not np.isfinite(images).all():
            bad = int(np.argmin(np.isfinite(images).reshape(len(images), -1).all(1)))
            raise TrainingError(
                f"image {bad} of the batch for step {self.steps + 1} has values that are not finite; the weights are "
                f"those of step {self.steps}."
            )
        if labels is None:
            return Batch(images, None, levels)
        labels = np.asarray(labels)
        classes = self._library.source.outputs
        if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
            raise ShapeError(f"{len(images)} whole numbers are needed as labels, got {labels.dtype} {labels.shape}.")
        if labels.min() < 0 or labels.max() >= classes:
            raise ShapeError(f"labels are from {labels.min()} to {labels.max()}; the model has {classes} classes.")
        return Batch(images, np.ascontiguousarray(labels, np.int32), levels)

    def run(
        self, batch: Batch, order: Integer[np.ndarray, "steps size"], *, rates: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Takes a step for each row of `order`, indices into the batch; returns (mean loss, hits) of each step."""
        rates = np.full(len(order), self.learning_rate) if rates is None else rates
        before = self.steps
        outcome = self._call(batch, order, mode=library.TRAIN, rates=rates)
        if outcome.done < len(order):
            raise TrainingError(
                f"the loss of step {before + outcome.done + 1} is {outcome.losses[-1]}; the weights are those of step "
                f"{before + outcome.done}. Try a smaller learning rate than {float(rates[outcome.done]):g}."
            )
        return outcome.losses, outcome.hits

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """(mean loss, hits) without dropout."""
        outcome = self._call(batch, np.arange(len(batch.images))[None], mode=library.EVALUATE)
        return float(outcome.losses[0]), int(outcome.hits[0])

    def logits(self, images: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n outputs"]:
        """What the network answers, without dropout."""
        batch = self.batch(images, None)
        logits = np.empty((len(batch.images), self._library.source.outputs), np.float32)
        self._call(batch, np.arange(len(logits))[None], mode=library.EVALUATE, logits=logits)
        return logits

    def gradient(self, images: Any, labels: Any) -> tuple[float, dict[nn.LayerPath, np.ndarray]]:
        """(mean loss, {path of a parameter: its gradient}) without dropout; zeros for pruned weights."""
        batch = self.batch(images, labels)
        trained = np.empty(len(self._trained), np.float32)
        order = np.arange(len(batch.images))[None]
        outcome = self._call(batch, order, mode=library.GRADIENT, gradient=trained)
        flat = np.zeros(self._parameters.size, np.float32)
        flat[self._trained] = trained
        return float(outcome.losses[0]), self._parameters.unflatten(flat)

    def model(self) -> nnx.Module:
        """A copy of the model with the present weights."""
        model = nnx.clone(self._model)
        self.update(model)
        return model

    def update(self, model: nnx.Module) -> None:
        """Gives a model of the same masks the present weights, in place; its pruned weights stay.

        Raises:
          TrainingError: if the model's masks are not those that the step was compiled for.
        """
        kept = np.flatnonzero(self._parameters.survivors(model))
        if not np.array_equal(kept, np.sort(self._trained)):
            raise TrainingError(
                "the model's masks changed since the step was compiled: call compile_training again with this model."
            )
        flat = self._parameters.flatten(model)
        flat[self._trained] = self._memory.theta
        self._parameters.assign(model, flat)

    def state(self) -> dict[str, np.ndarray]:
        """Weights and optimizer state as arrays: what `restore` takes, in this process or another."""
        memory = self._memory.copy()
        return {
            "parameters": self._trained.copy(),
            "theta": memory.theta,
            "first": memory.first,
            "second": memory.second,
            "powers": memory.powers,
            "steps": np.array(memory.steps),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from a saved state.

        Raises:
          TrainingError: if the state is that of another network or mask.
        """
        try:
            parameters, steps = np.asarray(state["parameters"]), int(state["steps"])
            arrays = [np.array(state[key], np.float32) for key in ("theta", "first", "second")]
            powers = np.array(state["powers"], np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise TrainingError(f"this is not the state of a training step: {error}.") from error
        if not np.array_equal(parameters, self._trained) or any(a.shape != self._trained.shape for a in arrays):
            raise TrainingError("the state belongs to another network or mask.")
        if powers.shape != (2,) or not np.isfinite(np.concatenate([*arrays, powers])).all():
            raise TrainingError("the state has values that are not finite.")
        theta, first, second = arrays
        self._memory = library.Memory(theta, first, second, powers, steps)

    def _call(self, batch: Batch, order: np.ndarray, **options: Any) -> library.Outcome:
        # Each step of a training has a key of its own: a resumed training drops the same units.
        key = self._seed * 0x9E3779B97F4A7C15 + self.steps * 0x100000001B3
        return self._library.run(
            self._memory,
            batch.images,
            batch.labels,
            order,
            threads=self.threads,
            levels=batch.levels,
            loss=self._loss,
            rule=self._rule,
            key=key % 2**64,
            **options,
        )


def _block() -> int:
    """Examples in a block: the floats of the machine's widest vector."""
    macros = build.machine_macros()
    for macro, size in (("__AVX512F__", 16), ("__AVX__", 8), ("__SSE2__", 4), ("__ARM_NEON", 4)):
        if f"#define {macro} " in macros:
            return size
    return 1


def _check_gradient(step: TrainingStep, model: nnx.Module, shape: tuple[int, ...]) -> None:
    """Compares loss and gradient with JAX's on a few random images."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(3, *shape)).astype(np.float32)
    labels = rng.integers(0, step._library.source.outputs, 3).astype(np.int32)
    frozen = nnx.clone(model)
    frozen.eval()
    graph_def, params, rest = nn.split_params(frozen)

    @jax.jit
    def both(params: Any) -> Any:
        def mean_loss(params: Any) -> Any:
            logits = nn.merge_params(graph_def, params, rest)(jnp.asarray(images))
            if step._loss == "squared":
                return 0.5 * jnp.square(logits - jax.nn.one_hot(labels, logits.shape[-1])).sum(-1).mean()
            return optax.softmax_cross_entropy_with_integer_labels(logits, jnp.asarray(labels)).mean()

        return jax.value_and_grad(mean_loss)(params)

    expected_loss, expected = both(params)
    loss, gradient = step.gradient(images, labels)
    wanted = {path: np.asarray(value[...]) for path, value in nnx.to_flat_state(expected)}
    largest = max(float(np.abs(value).max(initial=1e-30)) for value in wanted.values())
    worst = max(float(np.abs(gradient[path] - value).max(initial=0)) for path, value in wanted.items()) / largest
    if not max(worst, abs(loss - float(expected_loss)) / (1 + abs(loss))) <= TOLERANCE:
        raise ExportError(f"the compiled gradient differs from JAX's by {worst:.1e} of the largest entry.")
