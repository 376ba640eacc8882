"""The processes of a distributed run: which one is first, and actions on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from nttzoo.errors import NttzooError, RunError

T = TypeVar("T")


def is_first() -> bool:
    """Whether this process writes files and prints."""
    return jax.process_index() == 0


def together(action: Callable[[], T]) -> T:
    """The result of an action on every host; if it fails on one, all stop instead of waiting for that one forever."""
    if jax.process_count() == 1:
        return action()
    error: Exception | None = None
    try:
        result = action()
    except (NttzooError, OSError) as caught:
        error = caught
    failed = bool(multihost_utils.process_allgather(np.array(error is not None)).any())
    if error is not None:
        raise error
    if failed:
        raise RunError("another host failed; see its output for the reason.")
    return result
