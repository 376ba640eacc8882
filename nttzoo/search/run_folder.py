"""The folder of a run: whose it is, what happened, and where to go on.

config.json     what the run is: another one is refused
checkpoints/    the latest states
metrics.jsonl   one line per report
students/       what was found
summary.json, report.png
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nttzoo._util import provenance
from nttzoo._util.lock import FileLock
from nttzoo.checkpoint import Checkpoints
from nttzoo.errors import RunError
from nttzoo.search.devices import is_first, together

# In the order in which a fresh start throws them away: without its summary a run does not look finished, and the
# config goes last, lest what is left be taken for no run's.
CONTENTS = ("summary.json", "checkpoints", "students", "metrics.jsonl", "report.png", "config.json")


class Journal:
    """A run's memory: reports in `lines`, and, if there is a folder, both reports and states on disk.

    `fresh`: what an earlier run left in the folder is thrown away. On several hosts all share one folder; every method
    has to be called on all of them.
    """

    def __init__(self, folder: str | Path | None = None, *, fresh: bool = False):
        self.lines: list[dict[str, Any]] = []
        self.folder = None if folder is None else Path(folder)
        self._fresh = fresh
        self._checkpoints: Checkpoints | None = None
        self._lock: FileLock | None = None

    def check(self, description: dict[str, Any]) -> None:
        """Says so if the folder cannot be that of the run so described; changes nothing."""
        if self.folder is not None:
            together(lambda: _check(self.folder, description, self._fresh) if is_first() else None)  # type: ignore[arg-type]

    def claim(self, description: dict[str, Any]) -> None:
        """Makes the folder that of the run so described, and this process its only one.

        If it is another run's, says what differs.
        """
        if self.folder is not None and self._checkpoints is None:
            self._lock = together(lambda: _claim(self.folder, description, self._fresh) if is_first() else None)  # type: ignore[arg-type]
            self._checkpoints = Checkpoints(self.folder / "checkpoints")

    def go_on(self, state: Any) -> tuple[Any, int]:
        """The latest state and its step; the given one and 0 if there is none. Later reports are forgotten."""
        step = self._checkpoints.latest() if self._checkpoints else None
        if self._checkpoints and step is not None:
            found = together(self._read)
            self.lines = [line for line in found if line["step"] <= step]
            state = self._checkpoints.restore(step, state)
        together(self._rewrite)
        return state, step or 0

    def report(self, line: dict[str, Any]) -> None:
        """Adds one line of metrics."""
        self.lines.append(line)
        together(lambda: self._append(json.dumps(line) + "\n"))

    def save(self, step: int, state: Any) -> None:
        """Keeps a state to go on from."""
        if self._checkpoints:
            # A report must not be younger than the state that says it was made, whatever happens to the machine.
            together(lambda: self._append("", flush=True))
            self._checkpoints.save(step, state)

    def close(self) -> None:
        """Ends the use of the folder."""
        if self._checkpoints:
            self._checkpoints.close()
        if self._lock:
            self._lock.release()

    @property
    def _metrics(self) -> Path:
        return self.folder / "metrics.jsonl"  # type: ignore[operator]

    def _read(self) -> list[dict[str, Any]]:
        found = []
        for line in self._metrics.read_text().splitlines() if self._metrics.exists() else ():
            try:
                found.append(json.loads(line))
            except ValueError:
                break  # the run was killed while it wrote this line
        return found

    def _append(self, text: str, *, flush: bool = False) -> None:
        if self.folder and is_first():
            with _disk(self.folder), self._metrics.open("a") as file:
                file.write(text)
                if flush:
                    file.flush()
                    os.fsync(file.fileno())

    def _rewrite(self) -> None:
        if self.folder and is_first():
            part = self.folder / ".metrics.jsonl.part"
            with _disk(self.folder):
                part.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
                os.replace(part, self._metrics)


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write in {folder}: {error}. What was saved is whole; make room and run the same command again."
        ) from error


def _check(folder: Path, description: dict[str, Any], fresh: bool) -> None:
    """Raises if the folder is another run's, or no run's at all."""
    path = folder / "config.json"
    if path.exists() and not fresh:
        theirs, ours = _flat(provenance.read_json(path)), _flat(json.loads(json.dumps(description)))
        differing = [key for key in sorted(theirs | ours) if theirs.get(key) != ours.get(key)]
        if differing:
            lines = [f"  {key}: {theirs.get(key)!r} there, {ours.get(key)!r} now" for key in differing]
            raise RunError(
                f"{folder} belongs to another run:\n" + "\n".join(lines) + "\n"
                "Choose another folder, or delete this one (`nttzoo search --fresh` does)."
            )
    if folder.is_dir() and not path.exists() and any(not found.name.endswith(".part") for found in folder.iterdir()):
        raise RunError(f"{folder} is not empty and not the folder of a run. Choose another one.")


def _claim(folder: Path, description: dict[str, Any], fresh: bool) -> FileLock:
    _check(folder, description, fresh)
    path = folder / "config.json"
    if fresh and path.exists():
        lock = FileLock(path)
        for name in CONTENTS:
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
        lock.release()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error}. Choose another one.") from error
    if not path.exists():
        provenance.write_json(path, description)
    return FileLock(path)


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix: content}
    parts = (_flat(value, f"{prefix}.{key}" if prefix else key) for key, value in content.items())
    return {key: value for part in parts for key, value in part.items()}
