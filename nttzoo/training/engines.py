"""What trains: JAX, or compiled C. Both take the same orders of images, so `fit` need not know which it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nttzoo import nn
from nttzoo.data import Dataset, Labeled
from nttzoo.errors import ExportError, NttzooError, ShapeError, TrainingError
from nttzoo.training import jax_steps
from nttzoo.training.config import TrainConfig

# Up to this fraction of the multiply-adds C is faster on all machines and networks that were measured
# (results/bench_train.json); above it, which engine is faster depends on both.
SPARSE_BELOW = 0.3
Arrays = dict[str, np.ndarray]


@runtime_checkable
class Trainer(Protocol):
    """A network in training."""

    engine: Literal["jax", "c"]

    def begin_epoch(self, order: np.ndarray, train: Labeled | None = None) -> None:
        """An epoch begins, with these batches: indices of images [steps, batch]; `train`: other images from now on."""

    def run(self, begin: int, end: int) -> None:
        """Takes steps begin ... end - 1 of the epoch; raises `TrainingError` if a loss is not finite."""

    def totals(self) -> tuple[float, int]:
        """The sums of losses and of hits over the epoch up to now."""

    def accuracy(self, part: Labeled) -> float:
        """The fraction of images that it classifies correctly in evaluation mode; NaN without images."""

    def update(self, model: nnx.Module) -> None:
        """Gives the model the present weights."""

    def state(self) -> Arrays:
        """All that the next step depends on."""

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from such a state; raises `TrainingError` if it belongs to another network."""


def make(
    model: nnx.Module, data: Dataset, train: Labeled, config: TrainConfig, order: np.ndarray
) -> tuple[Trainer, str]:
    """(the trainer that the config asks for, why "auto" took it); `order`: the first epoch's batches."""
    if config.engine == "jax":
        return JaxTrainer(model, data, train, config), ""
    try:
        if config.engine == "auto":
            _check_worthwhile(model)
        compiled = CTrainer(model, data, train, config)
    except (ShapeError, TrainingError):  # the data are wrong for JAX too
        raise
    except NttzooError as error:
        if config.engine == "c":
            raise
        return JaxTrainer(model, data, train, config), f"not in C: {error}"
    if config.engine == "c" or compiled.step.density <= SPARSE_BELOW:
        return compiled, ""
    return _faster(compiled, lambda: JaxTrainer(model, data, train, config), model, order)


def _check_worthwhile(model: nnx.Module) -> None:
    if jax.default_backend() != "cpu":
        raise ExportError(f"JAX has a {jax.default_backend()} to train on.")
    if not any(nn.is_masked(layer) for _, layer in nnx.iter_modules(model)):
        raise ExportError("the network is dense.")


def _faster(
    compiled: CTrainer, make_other: Callable[[], JaxTrainer], model: nnx.Module, order: np.ndarray
) -> tuple[Trainer, str]:
    """The trainer whose steps take less time, and both times: measured now, or when such a network was last trained."""
    from nttzoo.training import timing

    place = timing.place_of(compiled.step.library, model, order.shape[1])
    other = None
    if (times := timing.read(place)) is None:
        other = make_other()
        try:
            times = timing.measure(compiled, other, order)
        except TrainingError:  # the training will fail in the same way, and say in which step
            return compiled, ""
        timing.keep(place, times)
    note = f"a step was measured to take {times.c:.3g} ms in C and {times.jax:.3g} in JAX"
    return (compiled if times.c <= times.jax else other or make_other()), note


class JaxTrainer:
    """Training in JAX: any model, loss and optax transformation."""

    engine: Literal["jax", "c"] = "jax"

    def __init__(self, model: nnx.Module, data: Dataset, train: Labeled, config: TrainConfig):
        work = nnx.clone(model)
        work.train()
        if not config.dropout:
            work.set_attributes(nnx.Dropout, deterministic=True, raise_if_not_found=False)
        if nnx.to_flat_state(nnx.state(work, nnx.RngState)).paths:
            nnx.reseed(work, default=config.seed, dropout=config.seed)
        graph, params, rest = nn.split_params(work)
        optimizer = config.make_optimizer()
        self._learning_rate = config.learning_rate
        self._run = jax.jit(partial(jax_steps.run_steps, graph, optimizer, config.make_loss()))
        self._data = (
            jnp.asarray(train.images),
            jnp.asarray(train.labels),
            (jnp.asarray(data.mean), jnp.asarray(data.std)),
        )
        self._evaluate = jax_steps.make_evaluator(work, data)
        self._state = jax_steps.start(params, rest, optimizer)

    def begin_epoch(self, order: np.ndarray, train: Labeled | None = None) -> None:
        self._order = jnp.asarray(order)
        if train is not None:
            self._data = (jnp.asarray(train.images), *self._data[1:])
        self._state = replace(self._state, loss=jnp.zeros(()), correct=jnp.zeros((), jnp.int32))

    def run(self, begin: int, end: int) -> None:
        after = jax.block_until_ready(self._run(self._state, *self._data, self._order, begin, end))
        if not np.isfinite(float(after.loss)):
            raise TrainingError(
                f"the loss is not finite in steps {begin + 1} to {end} of the epoch. Try a smaller learning rate than "
                f"{self._learning_rate:g}."
            )
        self._state = after

    def totals(self) -> tuple[float, int]:
        return float(self._state.loss), int(self._state.correct)

    def accuracy(self, part: Labeled) -> float:
        return self._evaluate(self._state.params, self._state.rest, part)

    def update(self, model: nnx.Module) -> None:
        nnx.update(model, self._state.params, self._state.rest)

    def state(self) -> Arrays:
        return {f"{i:05d}": _to_numpy(leaf) for i, leaf in enumerate(jax.tree.leaves(self._state))}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        leaves, tree = jax.tree.flatten(self._state)
        saved = [state.get(f"{i:05d}") for i in range(len(leaves))]
        if len(state) != len(leaves) or any(
            new is None or new.shape != _to_numpy(old).shape or new.dtype != _to_numpy(old).dtype
            for old, new in zip(leaves, saved, strict=True)
        ):
            raise TrainingError("the saved state belongs to another network.")
        pairs = zip(leaves, saved, strict=True)
        self._state = jax.tree.unflatten(tree, [_from_numpy(old, new) for old, new in pairs])


def _to_numpy(leaf: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def _from_numpy(like: Any, value: Any) -> Any:
    if jax.dtypes.issubdtype(like.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(value, impl=jax.random.key_impl(like))
    return jnp.asarray(value)


class CTrainer:
    """Training in compiled C, at the cost of the surviving weights."""

    engine: Literal["jax", "c"] = "c"

    def __init__(self, model: nnx.Module, data: Dataset, train: Labeled, config: TrainConfig):
        from nttzoo.codegen import training as compiled

        for what, value in (("optimizer", config.optimizer), ("loss", config.loss)):
            if not isinstance(value, str):
                raise ExportError(f"the {what} is one of your own.")
        rule = compiled.UpdateRule(
            kind=str(config.optimizer), momentum=config.momentum, weight_decay=config.weight_decay
        )
        self.step = compiled.compile_training(
            model,
            optimizer=rule,
            learning_rate=config.learning_rate,
            loss=str(config.loss),
            dropout=config.dropout,
            seed=config.seed,
            input_shape=tuple(data.input_shape),
        )
        # The same floats as `data.standardize` gives, by table.
        levels = np.arange(256, dtype=np.uint8)[:, None].repeat(data.input_shape[-1], 1)
        self._levels = np.ascontiguousarray(np.asarray(data.standardize(levels), np.float32).T)
        self._data = data
        self._batch = self._prepared(train)

    def begin_epoch(self, order: np.ndarray, train: Labeled | None = None) -> None:
        self._order = order
        if train is not None:
            self._batch = self._prepared(train)
        self._losses: list[np.ndarray] = []
        self._hits = 0

    def run(self, begin: int, end: int) -> None:
        losses, hits = self.step.run(self._batch, self._order[begin:end])
        self._losses.append(losses)
        self._hits += int(hits.sum())

    def totals(self) -> tuple[float, int]:
        return float(np.concatenate(self._losses).sum()), self._hits

    def accuracy(self, part: Labeled) -> float:
        if not len(part):
            return float("nan")
        _, hits = self.step.evaluate(self._prepared(part))
        return hits / len(part)

    def _prepared(self, part: Labeled) -> Any:
        """Images and labels for the compiled step: bytes as they are, anything else standardized."""
        if part.images.dtype == np.uint8:
            return self.step.batch(part.images, part.labels, self._levels)
        return self.step.batch(np.asarray(self._data.standardize(part.images)), part.labels)

    def update(self, model: nnx.Module) -> None:
        self.step.update(model)

    def state(self) -> Arrays:
        return self.step.state()

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.step.restore(state)
