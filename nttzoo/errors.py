"""Exceptions: everything that nttzoo raises on purpose is an `NttzooError`.

Each class also inherits from the built-in exception that a caller would expect, so that `except ValueError` works too.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable


class NttzooError(Exception):
    """Base class: an unsupported or invalid request; the message says what to change."""


class UnknownName(NttzooError, KeyError):
    """A name that is not registered; the message suggests longer names that begin with it, or the closest matches.

    `shown_by`: a command that shows all names, for a list too long for a message.
    """

    def __init__(self, kind: str, name: object, known: Iterable[str], *, shown_by: str = ""):
        known = sorted(known)
        longer = [other for other in known if isinstance(name, str) and name and other.startswith(f"{name}-")]
        near = longer[:3] or difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        listed = f"{shown_by} shows all {len(known)}." if shown_by else f"Known: {', '.join(known)}."
        super().__init__(f"no {kind} {name!r}.{hint} {listed}")

    def __str__(self) -> str:  # KeyError would print the message in quotation marks.
        return str(self.args[0])


class DensityError(NttzooError, ValueError):
    """A density outside (0, 1], or one that would leave a layer without weights."""


class ShapeError(NttzooError, ValueError):
    """Arrays whose shapes or types do not fit the model or each other."""


class DataError(NttzooError, ValueError):
    """A data set that is missing, damaged or invalid."""


class ModelError(NttzooError, ValueError):
    """A model that cannot be used in this way."""


class TrainingError(NttzooError, ArithmeticError):
    """Training failed, for example because the loss is not finite."""


class OptionError(NttzooError, ValueError):
    """An option with a value outside its choices or range."""


class RunError(NttzooError, RuntimeError):
    """A run's folder or files cannot be used for this."""


class BusyError(RunError):
    """Another process is using the same run or result."""


class Interrupted(NttzooError):
    """A run was interrupted; its state is saved. `signal` is the number of the signal received."""

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.signal = signal


class PeerError(RunError):
    """Another process of a distributed run died or failed. All exit with `exit_code`; the run can be resumed."""

    exit_code = 75  # "temporary failure" in sysexits.h: the same command may work next time


class ZooError(NttzooError, RuntimeError):
    """An entry of the zoo is damaged, or made for another version."""


class FileError(RunError, ZooError):
    """A file or folder that is damaged, unsafe or invalid. The message begins with its `path`.

    Raised for every problem with a file that nttzoo reads, in runs and in entries of the zoo.
    """

    def __init__(self, path: str | os.PathLike[str], problem: str, cure: str = ""):
        self.path = os.fspath(path)
        super().__init__(f"{self.path} {problem.rstrip('.')}.{' ' if cure else ''}{cure}")


class ExportError(NttzooError, RuntimeError):
    """A network cannot be exported, or the exported copy computes something different."""
