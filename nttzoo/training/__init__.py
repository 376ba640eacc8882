"""The supervised phase."""

from nttzoo.training.loop import (
    EVALUATION_BATCH,
    LOSSES,
    OPTIMIZERS,
    History,
    Loss,
    TrainConfig,
    TrainState,
    accuracy,
    fit,
    make_evaluator,
    run_steps,
    squared_loss,
    start,
)

__all__ = [
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
