"""A process that is killed at its k-th file-system event, without the cost of a process.

An audit hook sees every file that Python opens for writing, renames, deletes or makes. At event k it raises, and at
every later one too, so that neither `finally` nor `except` can tidy up, as after SIGKILL. What Orbax does inside a
folder that is being written is left out, because its threads do not stand that; `scripts/soak.py` kills real processes.
"""

import os
import sys
import threading
from contextlib import contextmanager

EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "ctypes.dlsym"}
INSIDE_ORBAX = ("arrays", "default")  # folders that it writes


class Killed(BaseException):
    pass


class _Counter:
    def __init__(self):
        self.below, self.limit, self.count = None, None, 0
        self.lock = threading.Lock()

    def __call__(self, event, arguments):
        if self.below is None or not self.concerns(event, arguments):
            return
        with self.lock:
            self.count += 1
            dead = self.limit is not None and self.count > self.limit
        if dead:
            raise Killed

    def concerns(self, event, arguments):
        if event == "ctypes.dlsym":  # how files.py gets at renameat2, once per exchange
            return arguments[1] == "renameat2"
        if event == "open":
            path, _, flags = arguments
            if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
                return False
        elif event not in EVENTS:
            return False
        else:
            path = arguments[0]
        try:
            place = os.fsdecode(path)
            return place.startswith(self.below) and not any(f"/{part}" in place for part in INSIDE_ORBAX)
        except TypeError:
            return True


_counter = _Counter()
sys.addaudithook(_counter)


@contextmanager
def killed_at(k, below):
    """Runs the block as a process that is killed before its k-th event (counted from 0) below a folder.

    Yields a function that tells how many events there were.
    """
    _counter.limit, _counter.count, _counter.below = k, 0, str(below)
    try:
        yield lambda: _counter.count
    except Killed:
        pass
    except BaseException as error:
        if not _is_killed(error):
            raise
    finally:
        _counter.below = None


def _is_killed(error):
    """Whether an exception is what a library made of ours."""
    while error is not None:
        if isinstance(error, Killed) or "Killed" in repr(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def events_of(action, below):
    """How many events an action has."""
    with killed_at(None, below) as count:
        action()
        return count()
