"""Locks: one process at a time works on a run or file; the lock ends with the process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from nttzoo.errors import BusyError, RunError


def acquire(path: Path, *, what: Path, wait: float = 0.0) -> filelock.BaseFileLock:
    """Holds a lock file until `release`, or until the lock is forgotten or the process ends, however that comes.

    Args:
      path: the lock file. It is made, and stays: deleting it would let two processes hold two files of one name.
      what: what the lock is for, to be named if another process holds it.
      wait: seconds to wait for the other process.
    """
    lock = filelock.FileLock(path, thread_local=False)
    try:
        lock.acquire(timeout=wait)
    except filelock.Timeout as error:
        raise BusyError(
            f"another process is using {what}: wait until it is done, or stop it, or write elsewhere."
        ) from error
    except OSError as error:
        raise RunError(f"cannot lock {what}: {error}. Choose a writable place.") from error
    return lock


@contextmanager
def alone_with(target: Path) -> Iterator[None]:
    """Keeps other processes from a file while the block runs; the lock file is a hidden one beside it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    held = acquire(target.with_name(f".{target.name}.lock"), what=target)
    try:
        yield
    finally:
        held.release()
