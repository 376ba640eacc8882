"""Errors in one process of several."""

import jax
import pytest

from nttzoo.errors import OptionError, PeerError, RunError
from nttzoo.search import peers

RESET = "Gloo all-gather failed: Read error [127.0.0.1]:42: Connection reset by peer"


def saving(cause):
    """As a run's folder reports what went wrong while it was written."""
    try:
        raise cause
    except type(cause) as error:
        raise RunError("the state at step 3 could not be saved") from error


@pytest.mark.parametrize("cause", [ValueError(RESET), jax.errors.JaxRuntimeError(RESET)], ids=["value", "runtime"])
def test_a_connection_lost_while_a_state_is_saved_is_that_of_a_dead_process(monkeypatch, cause):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(PeerError, match="another process of this run died"), peers.failing_together():
        saving(cause)


@pytest.mark.parametrize(
    "error",
    [ValueError("NO_SPACE: disk is full"), OSError(28, "No space left on device"), OptionError("no such connection")],
    ids=["value", "disk", "ours"],
)
def test_other_errors_stay_what_they_are(monkeypatch, error):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(RunError, match="could not be saved"), peers.failing_together():
        saving(error)
