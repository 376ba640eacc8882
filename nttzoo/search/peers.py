"""What a process of a distributed run does when another one dies: it ends too, soon, and says why.

Left alone, JAX waits for the dead process for minutes and then aborts with a C++ stack trace, and a process that fails
by itself waits for the others, which wait for it. So every process shows that it is alive through the coordinator, and
watches the others; and JAX's own notice that the coordinator is gone is caught.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import jax
from jax._src import distributed

from nttzoo.errors import Interrupted, NttzooError, PeerError

POLL_SECONDS = 1.0
SILENCE_SECONDS = 20.0  # after so long without a sign of life a process counts as dead
GRACE_SECONDS = 5.0  # for a process to learn of another's failure by itself, and to end in its own way
ALIVE, FAILED = "nttzoo/alive", "nttzoo/failed"
LOST = "another process of this run died. What was saved is whole: start all processes again to resume the run."

_stop = threading.Event()


def initialize(**options: Any) -> None:
    """`jax.distributed.initialize`, and a watch on the other processes until this one ends."""
    with _caught_loss_of_coordinator():
        jax.distributed.initialize(**options)
    thread = threading.Thread(target=_watch, name="nttzoo-peers", daemon=True)
    thread.start()

    def stop() -> None:
        _stop.set()
        thread.join()

    atexit.register(stop)  # runs before JAX takes its client down


@contextmanager
def failing_together() -> Iterator[None]:
    """Tells the other processes if this one fails, and turns a broken connection to them into a `PeerError`."""
    try:
        yield
    except Interrupted:
        raise  # all processes agreed on it
    except BaseException as error:
        if jax.process_count() > 1:
            if any(_is_lost_connection(cause) for cause in _causes(error)):
                raise PeerError(LOST) from error
            _tell(error)
        raise


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from, and so on: saving turns all that goes wrong into errors of its own."""
    while error is not None:
        yield error
        error = error.__cause__


def _is_lost_connection(error: BaseException) -> bool:
    """Whether a collective failed because of another process. JAX raises some of these errors as a ValueError."""
    if isinstance(error, NttzooError) or not isinstance(error, jax.errors.JaxRuntimeError | ValueError):
        return False
    words = ("gloo", "nccl", "unavailable", "connection", "heartbeat", "coordination")
    return any(word in str(error).lower() for word in words)


def _tell(error: BaseException) -> None:
    client = distributed.global_state.client
    if client is not None:
        with suppress(Exception):  # the coordinator may be gone, or this process has reported already
            client.key_value_set(f"{FAILED}/{jax.process_index()}", f"{type(error).__name__}: {error}")


def _watch() -> None:
    """Shows that this process is alive, and ends it if another one has failed or fallen silent."""
    state: Any = distributed.global_state
    own = str(state.process_id)
    began, count = time.monotonic(), 0
    seen = {str(i): ("", began) for i in range(state.num_processes)}  # each one's last sign, and when
    while not _stop.wait(POLL_SECONDS):
        count += 1
        try:
            state.client.key_value_set(f"{ALIVE}/{own}", str(count), True)
            alive, failed = (state.client.key_value_dir_get(folder) for folder in (ALIVE, FAILED))
        except Exception:  # the coordinator is gone, which JAX reports, or is shutting down at the end of the run
            continue
        now = time.monotonic()
        for key, sign in alive:
            who = key.rpartition("/")[2]
            if seen[who][0] != sign:
                seen[who] = sign, now
        if any(now - when > SILENCE_SECONDS for who, (_, when) in seen.items() if who != own):
            _end(LOST)
        reasons = [text for key, text in failed if key.rpartition("/")[2] != own]
        if reasons and not _stop.wait(GRACE_SECONDS):
            _end(f"another process of this run failed: {reasons[0]}")


def _end(message: str) -> None:
    """Ends the process at once: its main thread may be waiting, in C++, for a process that is gone."""
    with suppress(Exception):
        print(f"nttzoo: PeerError: {message}", file=sys.stderr, flush=True)
    os._exit(PeerError.exit_code)


@contextmanager
def _caught_loss_of_coordinator() -> Iterator[None]:
    """Has JAX call `_end`, not abort, when it loses the coordinator. JAX has no public option for that.

    Its client takes a callback, but (jaxlib 0.10) cannot hand it the error: an exception that ends the process then
    goes through C++'s terminate handler, which is ours as well.
    """
    library: Any = distributed._jax
    make = library.get_distributed_runtime_client
    library.get_distributed_runtime_client = partial(make, missed_heartbeat_callback=lambda *_: _end(LOST))
    _set_terminate_handler()
    try:
        yield
    finally:
        library.get_distributed_runtime_client = make


def _set_terminate_handler() -> None:
    try:
        set_terminate = ctypes.CDLL("libstdc++.so.6")._ZSt13set_terminatePFvvE
    except (OSError, AttributeError):
        return  # another C++ library
    handler_type = ctypes.CFUNCTYPE(None)
    set_terminate.restype = ctypes.c_void_p

    def handler() -> None:
        if not _coordinator_answers():
            _end(LOST)
        ctypes.cast(before, handler_type)()  # something else is wrong: end as C++ would have

    _handlers.append(handler_type(handler))
    before = ctypes.c_void_p(set_terminate(_handlers[-1]))


_handlers: list[Any] = []  # must live as long as C++ may call them


def _coordinator_answers() -> bool:
    host, _, port = str(distributed.global_state.coordinator_address).rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=3).close()
    except (OSError, ValueError):
        return False
    return True
