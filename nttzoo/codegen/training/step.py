"""A compiled training step as an object, for custom loops and for `nttzoo.fit`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float, Integer

from nttzoo import nn
from nttzoo.codegen import build
from nttzoo.codegen.training import library, trace
from nttzoo.codegen.training.library import Outcome, UpdateRule
from nttzoo.codegen.training.threads import ThreadChoice
from nttzoo.errors import ShapeError, TrainingError


@dataclass(frozen=True)
class Batch:
    """Images and labels from which steps select."""

    images: np.ndarray
    labels: np.ndarray | None
    levels: np.ndarray | None = None  # [channels, 256]: the float of each level of a uint8 image


class TrainingStep:
    """A training step: calling it trains on a batch. It owns its weights and optimizer state."""

    def __init__(
        self,
        compiled: library.Library,
        parameters: trace.Parameters,
        model: nnx.Module,
        rule: UpdateRule,
        learning_rate: float,
        loss: str,
        seed: int,
        threads: int | None,
        input_shape: tuple[int, ...],
    ):
        self.input_shape = input_shape
        self.threads = threads
        self._choices: dict[int, ThreadChoice] = {}
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
        """The number of steps taken."""
        return self._memory.steps

    @property
    def density(self) -> float:
        """The fraction of the dense multiply-adds that remain."""
        return self._library.tables.density

    @property
    def library(self) -> Path:
        """The compiled library: one for all masks of an architecture."""
        return self._library.path

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
          TrainingError: if the loss or its gradient is not finite; the weights stay as they were.
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
            loss, last = outcome.losses[-1], before + outcome.done
            what = (
                f"the gradient of step {last + 1} is not finite"
                if np.isfinite(loss)
                else f"the loss of step {last + 1} is {loss}"
            )
            raise TrainingError(
                f"{what}; the weights are those of step {last}. Try a smaller learning rate than "
                f"{float(rates[outcome.done]):g}."
            )
        return outcome.losses, outcome.hits

    def evaluate(self, batch: Batch) -> tuple[float, int]:
        """(mean loss, hits) without dropout."""
        outcome = self._call(batch, np.arange(len(batch.images))[None], mode=library.EVALUATE)
        return float(outcome.losses[0]), int(outcome.hits[0])

    def logits(self, images: Float[np.ndarray, "n ..."]) -> Float[np.ndarray, "n outputs"]:
        """The network's outputs, without dropout."""
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
        """A copy of the model with the current weights."""
        model = nnx.clone(self._model)
        self.update(model)
        return model

    def update(self, model: nnx.Module) -> None:
        """Copies the current weights into a model with the same masks; its pruned weights stay as they are.

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
        """Resumes from a saved state.

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

    def _call(self, batch: Batch, order: np.ndarray, **options: Any) -> Outcome:
        # Each step has its own key, so that a resumed training drops the same units.
        key = self._seed * 0x9E3779B97F4A7C15 + self.steps * 0x100000001B3
        with self._threads_for(options["mode"], order) as threads:
            return self._library.run(
                self._memory,
                batch.images,
                batch.labels,
                order,
                threads=threads,
                levels=batch.levels,
                loss=self._loss,
                rule=self._rule,
                key=key % 2**64,
                **options,
            )

    def _threads_for(self, mode: int, order: np.ndarray) -> AbstractContextManager[int]:
        if self.threads is not None:
            return nullcontext(self.threads)
        return self._choices.setdefault(mode, ThreadChoice(build.usable_cores())).use(order.size)
