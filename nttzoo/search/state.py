"""The state of a student: what one step hands to the next, and what a checkpoint keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Integer


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """A student between two steps. `sums` adds up what is reported since the last report; `ranks` are the scores of the
    last mask, if the recipe averages them."""

    params: Any
    masks: Any
    optimizer: Any
    sums: LossSums
    churn: Integer[Array, ""]  # weights that entered or left at the last refresh
    ranks: Any = None


States = tuple[State, ...]


class LossSums(NamedTuple):
    """Sums over steps of the terms of the loss, and of the gradient's norm."""

    target: Any
    kernel: Any
    decay: Any
    gradient: Any


def no_sums() -> LossSums:
    """Before the first step."""
    return LossSums(*(jnp.zeros(()) for _ in LossSums._fields))
