"""How to train: `TrainConfig`, and the optimizers and losses that it can name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Integer

from nttzoo._util.checks import (
    check_callable,
    check_choice,
    check_count,
    check_flag,
    check_instance,
    check_number,
    check_seed,
)
from nttzoo.errors import OptionError
from nttzoo.registry import Registry
from nttzoo.settings import TrainSettings
from nttzoo.training.augmentation import AUGMENTATIONS, Augmentation

Loss = Callable[[Float[Array, "n classes"], Integer[Array, " n"]], Float[Array, " n"]]

OPTIMIZERS: Registry[Callable[..., optax.GradientTransformation]] = Registry("optimizer")
LOSSES: Registry[Loss] = Registry("loss")
LOSSES.register("cross_entropy")(optax.softmax_cross_entropy_with_integer_labels)


@OPTIMIZERS.register("adam")
def _adam(learning_rate: float, *, momentum: float, weight_decay: float) -> optax.GradientTransformation:
    if momentum:
        raise OptionError(f"momentum is {momentum}; it is for optimizer 'sgd'. Adam has its own.")
    return optax.adamw(learning_rate, weight_decay=weight_decay) if weight_decay else optax.adam(learning_rate)


@OPTIMIZERS.register("sgd")
def _sgd(learning_rate: float, *, momentum: float, weight_decay: float) -> optax.GradientTransformation:
    descent = optax.sgd(learning_rate, momentum=momentum or None)
    return optax.chain(optax.add_decayed_weights(weight_decay), descent) if weight_decay else descent


@LOSSES.register("squared")
def squared_loss(logits: Float[Array, "n classes"], labels: Integer[Array, " n"]) -> Float[Array, " n"]:
    """Half the squared distance to the one-hot target, per example."""
    return 0.5 * jnp.square(logits - jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)).sum(-1)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(TrainSettings):
    """How to train; the defaults are the paper's for MNIST and Fashion-MNIST (CIFAR-10: 600 epochs).

    Args:
      epochs: passes over the training images.
      batch_size: images per step.
      learning_rate: of a named optimizer.
      optimizer: "adam", "sgd", or any optax transformation, which then brings its own learning rate.
      momentum: of "sgd".
      weight_decay: decoupled for "adam" (AdamW), an L2 term for "sgd".
      loss: "cross_entropy", "squared", or a function (logits [n, classes], labels [n]) -> [n].
      validation: fraction of the training images held out.
      augmentation: "none", "flip", "crop" (shifts by up to four pixels), "crop_flip", or a function (images, NumPy
        generator) -> images, applied to the training images before every epoch.
      dropout: False leaves it out where a network has it; it slows a very sparse network down more than it helps.
      seed: of the split, the order of images and dropout.
      progress: whether to show a progress bar.
      engine: "c" trains in compiled C, at the cost of the surviving weights; "jax" in JAX; "auto" in C on a CPU
        where model, optimizer and loss allow it and the network is sparse: up to 30 % of the multiply-adds in any case,
        above that if a few steps of both, timed once on each machine, are faster in C.

    Example:
      >>> config = nttzoo.TrainConfig(epochs=10, optimizer=optax.adamw(1e-3, weight_decay=1e-4))
    """

    # Python can give more than names.
    optimizer: str | optax.GradientTransformation = TrainSettings.optimizer
    loss: str | Loss = TrainSettings.loss  # type: ignore[assignment]
    augmentation: str | Augmentation = TrainSettings.augmentation  # type: ignore[assignment]
    progress: bool = True

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs, least=0)
        check_count("batch_size", self.batch_size, least=0)  # `fit` compares it with the number of images
        check_number("learning_rate", self.learning_rate, "positive", 0)
        check_number("validation", self.validation, "the fraction held out, in [0, 1)", 0, 1)
        check_number("momentum", self.momentum, "a number in [0, 1)", 0, 1)
        check_number("weight_decay", self.weight_decay, "a number, 0 or more", 0)
        check_flag("dropout", self.dropout)
        check_flag("progress", self.progress)
        check_choice("engine", self.engine, ("auto", "jax", "c"))
        check_seed(self.seed)
        self.make_augmentation()
        if isinstance(self.optimizer, str):
            self.make_optimizer()
        else:
            check_instance("optimizer", self.optimizer, optax.GradientTransformation)
        check_callable("loss", self.make_loss())

    def make_optimizer(self) -> optax.GradientTransformation:
        """The optax transformation that the config names or holds."""
        if isinstance(self.optimizer, str):
            make = OPTIMIZERS[self.optimizer]
            return make(self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay)
        return self.optimizer

    def make_loss(self) -> Loss:
        """The loss per example that the config names or holds."""
        return LOSSES[self.loss] if isinstance(self.loss, str) else self.loss

    def make_augmentation(self) -> Augmentation | None:
        """The function that changes training images before an epoch, if any does."""
        if isinstance(self.augmentation, str):
            return None if self.augmentation == "none" else AUGMENTATIONS[self.augmentation]
        check_callable("augmentation", self.augmentation)
        return self.augmentation

    def to_dict(self) -> dict[str, Any]:
        """For JSON: what results depend on; things of the user's own by their name."""
        named = {key: value for key, value in asdict(self).items() if key != "progress"}
        if self.augmentation == "none":  # left out: results and checkpoints from before there was any stay valid
            del named["augmentation"]
        return {key: value if isinstance(value, int | float | str) else _name(value) for key, value in named.items()}


def _name(value: Any) -> str:
    return getattr(value, "__qualname__", type(value).__qualname__)
