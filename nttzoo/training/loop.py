"""The supervised phase: `fit` trains any NNX classifier; many steps run inside one jitted loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Integer

from nttzoo._util import console
from nttzoo._util.checks import check_seed
from nttzoo._util.pace import Pace
from nttzoo.data import Dataset, Labeled, epoch_order, standardize
from nttzoo.errors import OptionError, ShapeError, TrainingError
from nttzoo.nn import merge_params, split_params
from nttzoo.registry import Registry

Loss = Callable[[Float[Array, "n classes"], Integer[Array, " n"]], Float[Array, " n"]]

OPTIMIZERS: Registry[Callable[[float], optax.GradientTransformation]] = Registry("optimizer")
OPTIMIZERS.register("adam")(optax.adam)
OPTIMIZERS.register("sgd")(optax.sgd)

LOSSES: Registry[Loss] = Registry("loss")
LOSSES.register("cross_entropy")(optax.softmax_cross_entropy_with_integer_labels)


@LOSSES.register("squared")
def squared_loss(logits: Float[Array, "n classes"], labels: Integer[Array, " n"]) -> Float[Array, " n"]:
    """Half the squared distance to the one-hot target, per example."""
    return 0.5 * jnp.square(logits - jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)).sum(-1)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How to train; the defaults are the paper's for MNIST and Fashion-MNIST (CIFAR-10: 600 epochs).

    `optimizer` is a name ("adam", "sgd") or any optax transformation, which then brings its own learning rate; `loss`
    is a name ("cross_entropy", "squared") or a function (logits [n, classes], labels [n]) -> [n]. `dropout=False`
    leaves it out where a network has it: it slows a very sparse network down more than it helps a short training.
    """

    epochs: int = 50
    batch_size: int = 64
    learning_rate: float = 1e-3
    optimizer: str | optax.GradientTransformation = "adam"
    loss: str | Loss = "cross_entropy"
    validation: float = 0.1
    dropout: bool = True
    seed: int = 0
    progress: bool = True

    def __post_init__(self) -> None:
        if self.epochs < 0:
            raise OptionError(f"epochs is {self.epochs}; it must be 0 or more.")
        if not self.learning_rate > 0:
            raise OptionError(f"learning_rate is {self.learning_rate}; it must be positive.")
        if not 0 <= self.validation < 1:
            raise OptionError(f"validation is {self.validation}; it is the fraction held out, in [0, 1).")
        check_seed(self.seed)

    def make_optimizer(self) -> optax.GradientTransformation:
        """The optax transformation that the config names or holds."""
        if isinstance(self.optimizer, str):
            return OPTIMIZERS[self.optimizer](self.learning_rate)
        return self.optimizer

    def make_loss(self) -> Loss:
        """The loss per example that the config names or holds."""
        return LOSSES[self.loss] if isinstance(self.loss, str) else self.loss


@dataclass
class History:
    """What happened in each epoch; accuracies are fractions. Without validation images, their accuracy is NaN."""

    train_loss: list[float] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    validation_accuracy: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def to_dict(self) -> dict[str, list[float | None]]:
        """For JSON, which has no NaN: None in its place."""
        return {name: [None if np.isnan(v) else v for v in values] for name, values in asdict(self).items()}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """The arrays that one step hands to the next; loss and correct answers are summed over an epoch."""

    params: Any
    rest: Any
    optimizer: Any
    loss: Any
    correct: Any


EVALUATION_BATCH = 500


def fit(model: nnx.Module, data: Dataset, config: TrainConfig | None = None) -> History:
    """Trains `model` in place on the standardized images of `data`; returns the history.

    A seeded fraction of the training set is held out for validation. The same seed gives the same weights bit for bit
    on one machine. The model always holds the weights of the last completed epoch: after Ctrl-C, or when the loss stops
    being finite (`TrainingError`). It is left in the mode (training or evaluation) in which it came.
    """
    config = config or TrainConfig()
    optimizer, loss = config.make_optimizer(), config.make_loss()
    _check_fit(model, data)
    train, validation = data.train.split(config.validation, seed=config.seed)
    rng = np.random.default_rng([config.seed, 1])
    epoch_order(rng, len(train), config.batch_size)  # refuses an unfitting batch size before any work

    work = nnx.clone(model)
    work.train()
    if not config.dropout:
        work.set_attributes(nnx.Dropout, deterministic=True, raise_if_not_found=False)
    if nnx.to_flat_state(nnx.state(work, nnx.RngState)).paths:
        nnx.reseed(work, default=config.seed, dropout=config.seed)
    graph, params, rest = split_params(work)
    run = jax.jit(partial(run_steps, graph, optimizer, loss))
    evaluate = make_evaluator(work, data)
    images, labels = jnp.asarray(train.images), jnp.asarray(train.labels)
    moments = jnp.asarray(data.mean), jnp.asarray(data.std)

    state = start(params, rest, optimizer)
    history = History()
    steps = len(train) // config.batch_size
    pace = Pace()
    with console.progress_bar(show=config.progress) as bar:
        task = bar.add_task("training", total=config.epochs * steps, note="")
        for epoch in range(config.epochs):
            began = time.perf_counter()
            order = jnp.asarray(epoch_order(rng, len(train), config.batch_size))
            state = replace(state, loss=jnp.zeros(()), correct=jnp.zeros((), jnp.int32))
            done = 0
            while done < steps:
                stop = min(done + pace.chunk, steps)
                pace.begin()
                state = jax.block_until_ready(run(state, images, labels, moments, order, done, stop))
                if not np.isfinite(float(state.loss)):
                    raise TrainingError(
                        f"the loss is not finite in epoch {epoch + 1}, steps {done + 1} to {stop}. The model holds the "
                        f"weights of epoch {epoch}. Try a smaller learning rate than {config.learning_rate:g}."
                    )
                bar.update(task, advance=stop - done)
                pace.done(stop - done)
                done = stop
            seen = steps * config.batch_size
            history.train_loss.append(float(state.loss) / steps)
            history.train_accuracy.append(int(state.correct) / seen)
            history.validation_accuracy.append(evaluate(state.params, state.rest, validation))
            history.test_accuracy.append(evaluate(state.params, state.rest, data.test))
            history.seconds.append(time.perf_counter() - began)
            nnx.update(model, state.params, state.rest)
            bar.update(task, note=f"epoch {epoch + 1}: test {history.test_accuracy[-1]:.2%}")
    return history


def accuracy(model: nnx.Module, data: Dataset, part: Labeled | None = None) -> float:
    """Fraction of `part` (by default the test set) that the model, in evaluation mode, classifies correctly."""
    _check_fit(model, data)
    _, params, rest = split_params(model)
    return make_evaluator(model, data)(params, rest, data.test if part is None else part)


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


def _check_fit(model: nnx.Module, data: Dataset) -> None:
    shape = getattr(model, "input_shape", data.input_shape)
    if tuple(shape) != tuple(data.input_shape):
        raise ShapeError(
            f"the model takes images of shape {tuple(shape)}, data set {data.name!r} has {tuple(data.input_shape)}. "
            f"Create the model with input_shape={tuple(data.input_shape)}."
        )
    classes = getattr(model, "num_classes", data.num_classes)
    if classes < data.num_classes:
        raise ShapeError(
            f"the model has {classes} outputs, data set {data.name!r} {data.num_classes} classes. "
            f"Create the model with num_classes={data.num_classes}."
        )
