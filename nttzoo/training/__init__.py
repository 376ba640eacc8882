"""The supervised phase."""

from nttzoo.training.augmentation import AUGMENTATIONS
from nttzoo.training.config import LOSSES, OPTIMIZERS, Loss, TrainConfig, squared_loss
from nttzoo.training.history import History
from nttzoo.training.jax_steps import EVALUATION_BATCH, TrainState, make_evaluator, run_steps, start
from nttzoo.training.loop import accuracy, fit

__all__ = [
    "AUGMENTATIONS",
    "EVALUATION_BATCH",
    "LOSSES",
    "OPTIMIZERS",
    "History",
    "Loss",
    "TrainConfig",
    "TrainState",
    "accuracy",
    "fit",
    "make_evaluator",
    "run_steps",
    "squared_loss",
    "start",
]
