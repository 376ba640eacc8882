"""One process at a time: what somebody works on is locked for as long as the process lives, and no longer."""

from __future__ import annotations

import os
import weakref
from pathlib import Path

from nttzoo.errors import BusyError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class FileLock:
    """On an existing file, from now until `release`, or until it is forgotten or the process ends, however that comes.

    Where the system or a network disk knows no locks, nothing is held.
    """

    def __init__(self, path: Path):
        file = os.open(path, os.O_RDONLY)
        self._close = weakref.finalize(self, os.close, file)
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.release()
            raise BusyError(
                f"another process is at work on {path}: wait until it is done, or stop it, or write elsewhere."
            ) from error
        except OSError:
            pass

    def release(self) -> None:
        """Lets others in."""
        self._close()
