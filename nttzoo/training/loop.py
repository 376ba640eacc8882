"""The supervised phase: `fit` trains any NNX classifier."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from flax import nnx

from nttzoo import nn
from nttzoo._util import console
from nttzoo._util.checks import check_instance, check_model, check_path
from nttzoo._util.chunking import ChunkTimer
from nttzoo.data import Dataset, Labeled, epoch_order
from nttzoo.errors import ExportError, ShapeError, TrainingError
from nttzoo.training import engines, jax_steps
from nttzoo.training.checkpoint import Checkpoint
from nttzoo.training.config import TrainConfig
from nttzoo.training.history import History


def fit(
    model: nnx.Module,
    data: Dataset,
    config: TrainConfig | None = None,
    *,
    checkpoint: str | os.PathLike[str] | None = None,
) -> History:
    """Trains `model` in place on the standardized images of `data`.

    A seeded fraction of the training set is held out for validation. The same seed gives the same weights bit for bit
    in one engine on one machine. The model always holds the weights of the last completed epoch: after Ctrl-C, or when
    the loss stops being finite. It is left in the mode (training or evaluation) in which it came.

    Args:
      model: any NNX classifier; a sparse one trains in compiled C where it can (see `TrainConfig.engine`).
      data: images and labels.
      config: how to train.
      checkpoint: a folder that keeps the state of the training: called again with it and with the model as it was at
        the start, a killed training resumes where it was, bit for bit; a finished one returns immediately.

    Returns:
      What happened in each epoch, and which engine trained.

    Raises:
      TrainingError: if the loss is not finite, or the checkpoint belongs to another training.
      ShapeError: if the model does not fit the data.

    Example:
      >>> history = nttzoo.fit(model, data, nttzoo.TrainConfig(epochs=10))
    """
    check_model("model", model)
    check_instance("data", data, Dataset)
    config = TrainConfig() if config is None else config
    check_instance("config", config, TrainConfig)
    if checkpoint is not None:
        check_path("checkpoint", checkpoint)
    check_fit(model, data)
    train, validation = data.train.split(config.validation, rngs=config.seed)
    rng = np.random.default_rng([config.seed, 1])
    orders = [epoch_order(rng, len(train), config.batch_size)]  # an unfitting batch size raises before any work
    augment = config.make_augmentation()
    folder = Checkpoint(Path(checkpoint), config, data, _weights(model)) if checkpoint is not None else None
    saved = folder.read() if folder else None
    if saved and config.engine == "auto":  # a resumed training keeps its engine
        config = replace(config, engine=saved.history.engine)
    try:
        trainer, note = engines.make(model, data, train, config, orders[0])
    except ExportError as error:
        if saved:
            raise TrainingError(f"{checkpoint} was trained in C, which is not possible here: {error}") from error
        raise
    history = History(engine=trainer.engine, engine_note=note)
    if saved:
        if saved.history.engine != trainer.engine:
            raise TrainingError(
                f"{checkpoint} was trained with engine {saved.history.engine!r}, this would be {trainer.engine!r}: "
                'choose that engine or "auto" in TrainConfig, or another folder.'
            )
        history = saved.history
        trainer.restore(saved.arrays)
        trainer.update(model)
    steps = len(train) // config.batch_size
    timer = ChunkTimer()
    with console.progress_bar(show=config.progress) as bar:
        if config.progress and note and history.engine == "jax":
            bar.console.print(f"Training runs in JAX, {note}", markup=False, highlight=False)
        task = bar.add_task("training", total=config.epochs * steps, completed=history.epochs * steps, note="")
        for epoch in range(config.epochs):
            order = orders.pop() if orders else epoch_order(rng, len(train), config.batch_size)
            if epoch < history.epochs:
                continue
            began = time.perf_counter()
            if augment:
                images = augment(train.images, np.random.default_rng([config.seed, 2, epoch]))
                check_augmented(train.images, images)
                trainer.begin_epoch(order, Labeled(images, train.labels))
            else:
                trainer.begin_epoch(order)
            done = 0
            while done < steps:
                stop = min(done + timer.chunk, steps)
                timer.begin()
                try:
                    trainer.run(done, stop)
                except TrainingError as error:
                    raise TrainingError(
                        f"epoch {epoch + 1}: {error} The model holds the weights of epoch {epoch}."
                    ) from error
                bar.update(task, advance=stop - done)
                timer.done(stop - done)
                done = stop
            loss, hits = trainer.totals()
            history.train_loss.append(loss / steps)
            history.train_accuracy.append(hits / (steps * config.batch_size))
            history.validation_accuracy.append(trainer.accuracy(validation))
            history.test_accuracy.append(trainer.accuracy(data.test))
            history.seconds.append(time.perf_counter() - began)
            trainer.update(model)
            if folder:
                folder.write(history, trainer.state(), now=epoch + 1 == config.epochs)
            bar.update(task, note=f"epoch {epoch + 1}: test {history.test_accuracy[-1]:.2%}")
    return history


def accuracy(model: nnx.Module, data: Dataset, part: Labeled | None = None) -> float:
    """Fraction of `part` (by default the test set) that the model, in evaluation mode, classifies correctly."""
    check_fit(model, data)
    _, params, rest = nn.split_params(model)
    return jax_steps.make_evaluator(model, data)(params, rest, data.test if part is None else part)


def check_fit(model: nnx.Module, data: Dataset) -> None:
    """Raises unless the model takes the images of the data set and has an output for each class."""
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


def check_augmented(before: np.ndarray, after: np.ndarray) -> None:
    """Raises unless an augmentation kept the shape and type of the images."""
    if getattr(after, "shape", None) != before.shape or after.dtype != before.dtype:
        made = f"{after.dtype} {list(after.shape)}" if isinstance(after, np.ndarray) else type(after).__name__
        raise ShapeError(f"the augmentation made {made} of images {before.dtype} {list(before.shape)}.")


def _weights(model: nnx.Module) -> np.ndarray:
    """All parameters and masks, as one vector."""
    variables = nnx.to_flat_state(nnx.state(model, (nnx.Param, nn.Mask)))
    return np.concatenate(
        [np.zeros(0, np.float32), *(np.ravel(np.asarray(value[...], np.float32)) for _, value in variables)]
    )
