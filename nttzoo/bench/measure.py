"""Timing side by side: our work and a peer's take turns, so that a noisy machine is unfair to both."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nttzoo.errors import NttzooError

PEERS = Path(__file__).parent / "peers"


class PeerError(NttzooError, RuntimeError):
    """A peer could not be run."""


def milliseconds(work: Callable[[], Any], *, repeats: int) -> float:
    """The best of `repeats` runs of `work`, which must return only when it is done; one run before warms up."""
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


def run_peer(script: str, *arguments: str, python: str, timeout: float = 900) -> dict[str, Any]:
    """Runs bench/peers/<script>.py with another environment's Python; it prints one line of JSON."""
    command = [python, str(PEERS / f"{script}.py"), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
    except FileNotFoundError as error:
        raise PeerError(f"there is no Python at {python!r}: name the peer's environment with --peer-python.") from error
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"peer {script!r} {' '.join(arguments)} took longer than {timeout:.0f} s.") from error
    except subprocess.CalledProcessError as error:
        raise PeerError(f"peer {script!r} failed in {python!r}: {error.stderr.strip()[-500:]}") from error
    return json.loads(done.stdout.strip().splitlines()[-1])
