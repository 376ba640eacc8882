"""What happened in a training."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

SERIES = ("train_loss", "train_accuracy", "validation_accuracy", "test_accuracy", "seconds")


@dataclass
class History:
    """What happened in each epoch; accuracies are fractions. Without validation images, their accuracy is NaN.

    `engine`: "jax" or "c"; `engine_note`: why not C, or how long a step takes in each, where "auto" chose by that.
    """

    train_loss: list[float] = field(default_factory=list)
    train_accuracy: list[float] = field(default_factory=list)
    validation_accuracy: list[float] = field(default_factory=list)
    test_accuracy: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    engine: Literal["jax", "c"] = "jax"
    engine_note: str = ""

    @property
    def epochs(self) -> int:
        """How many epochs were completed."""
        return len(self.train_loss)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN: None in its place."""
        content = asdict(self)
        return content | {name: [None if np.isnan(v) else v for v in content[name]] for name in SERIES}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> History:
        """The inverse of `to_dict`."""
        series = {name: [float("nan") if v is None else float(v) for v in content[name]] for name in SERIES}
        return cls(**series, engine=content["engine"], engine_note=content["engine_note"])
