"""The folder of a run: its owner, its metrics and its saved states.

config.json     what the run is: another one is refused
checkpoints/    the latest states, each a folder with a manifest
metrics.jsonl   one line per report
students/       what was found, each a folder with a manifest
summary.json, report.png, manifest.json
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from nttzoo._util import files, lock, provenance, schema
from nttzoo._util.hosts import is_first, together
from nttzoo.checkpoint import Checkpoints
from nttzoo.errors import FileError, RunError

# In the order in which a fresh start throws them away: without its summary a run does not look finished, and without
# its config what is left would not look like a run's.
CONTENTS = ("summary.json", "checkpoints", "students", "metrics.jsonl", "report.png", "manifest.json", "config.json")
REPORTS = "reports.jsonl"  # those up to a state, kept with it
_SOURCE = "factory.sha256"  # a comment may have changed: that is no other run
Defaults = Mapping[str, Any]


class Line(Struct):
    """A report: one line of metrics.jsonl."""

    step: int
    students: dict[str, dict[str, Any]]


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
        self._lock: Any = None

    def check(self, description: dict[str, Any], defaults: Defaults | None = None) -> None:
        """Raises if the folder cannot be that of the run so described; changes nothing.

        A field of the description that the folder's config does not have, because an earlier version wrote it, counts
        as its value in `defaults`.
        """
        if (folder := self.folder) is not None:
            together(lambda: _check(folder, description, defaults or {}, self._fresh) if is_first() else None)

    def claim(self, description: dict[str, Any], defaults: Defaults | None = None) -> None:
        """Makes the folder that of the run so described, and this process its only one; otherwise like `check`."""
        if (folder := self.folder) is not None and self._checkpoints is None:
            self._lock = together(
                lambda: _claim(folder, description, defaults or {}, self._fresh) if is_first() else None
            )
            self._checkpoints = Checkpoints(folder / "checkpoints")

    def resume(self, state: Any) -> tuple[Any, int]:
        """The latest whole state and its step; the given one and 0 if there is none. Later reports are forgotten."""
        checkpoints = self._checkpoints
        step = checkpoints.latest_whole() if checkpoints else None
        if checkpoints and step is not None:
            self.lines = together(lambda: self._read(checkpoints.text(step, REPORTS), step))
            state = checkpoints.restore(step, state)
        together(self._rewrite)
        return state, step or 0

    def report(self, line: dict[str, Any]) -> None:
        """Adds one line of metrics."""
        self.lines.append(line)
        together(lambda: self._append(json.dumps(line) + "\n"))

    def save(self, step: int, state: Any) -> None:
        """Saves a state to resume from."""
        if self._checkpoints:
            # A report must not be younger than the state that says it was made, whatever happens to the machine.
            together(lambda: self._append("", flush=True))
            reports = "".join(json.dumps(line) + "\n" for line in self.lines)
            self._checkpoints.save(step, state, {REPORTS: reports})

    def close(self) -> None:
        """Ends the use of the folder."""
        if self._checkpoints:
            self._checkpoints.close()
        if self._lock:
            self._lock.release()

    @property
    def _metrics(self) -> Path:
        return self.folder / "metrics.jsonl"  # type: ignore[operator]

    def _read(self, kept: str | None, step: int) -> list[dict[str, Any]]:
        """The reports up to a state; one of an earlier version has none with it, so those of the run are taken."""
        text = kept
        if text is None:
            text = files.read_bytes(self._metrics).decode(errors="replace") if self._metrics.exists() else ""
        found = []
        for line in text.splitlines():
            try:
                found.append(schema.validate(self._metrics, json.loads(line), Line))
            except (ValueError, RecursionError, FileError):
                break  # the run was killed while it wrote this line
        return [line for line in found if line["step"] <= step]

    def _append(self, text: str, *, flush: bool = False) -> None:
        if self.folder and is_first():
            with _disk(self.folder), self._metrics.open("a") as file:
                file.write(text)
                if flush:
                    file.flush()
                    os.fsync(file.fileno())

    def _rewrite(self) -> None:
        if self.folder and is_first():
            files.write_text(self._metrics, "".join(json.dumps(line) + "\n" for line in self.lines))


def write_summary(folder: Path, content: dict[str, Any]) -> None:
    """Ends a run. Its manifest comes first: a run with a summary is finished, and can be checked."""
    text = files.to_json(content)
    files.seal(folder, {"summary.json": text.encode()})
    files.write_text(folder / "summary.json", text)


def read_summary(folder: Path) -> dict[str, Any]:
    """The summary of a finished run, if it is what was written."""
    path, manifest = folder / "summary.json", folder / files.MANIFEST
    if manifest.exists():
        listed = {name: files.read_manifest(manifest).get(name) for name in (path.name, "config.json")}
        for name, expected in listed.items():
            if expected != files.describe(folder / name):
                raise FileError(folder / name, "was changed or cut short", "--fresh starts the run over.")
    else:
        files.warn_of_no_manifest(folder)
    return schema.read(path, schema.SummaryFile, what="the summary of a search")


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write in {folder}: {error}. Saved states are intact; free some space and run the same command "
            "again."
        ) from error


def _check(folder: Path, description: dict[str, Any], defaults: Defaults, fresh: bool) -> None:
    """Raises if the folder is another run's, no run's at all, or cannot be made."""
    path = folder / "config.json"
    files.check_folder(folder)
    if path.exists() and not fresh:
        theirs, ours = _flat(files.read_json(path)), _flat(json.loads(json.dumps(description)))
        theirs = {**{key: value for key, value in _flat(dict(defaults)).items() if key in ours}, **theirs}
        differing = [key for key in sorted(theirs | ours) if theirs.get(key) != ours.get(key)]
        if differing == [_SOURCE]:
            warnings.warn(
                f"the source of {ours['factory.reference']} has changed since {folder} was begun: the network may "
                "compute something else now. --fresh starts over.",
                stacklevel=2,
            )
        elif differing:
            lines = [f"  {key}: {theirs.get(key)!r} there, {ours.get(key)!r} now" for key in differing]
            raise RunError(
                f"{folder} belongs to another run:\n" + "\n".join(lines) + "\n"
                "Choose another folder, or delete this one (`nttzoo search --fresh` does)."
            )
    if folder.is_dir() and not path.exists() and any(not files.is_temporary(found) for found in folder.iterdir()):
        raise RunError(f"{folder} is not empty and not the folder of a run. Choose another one.")


def _claim(folder: Path, description: dict[str, Any], defaults: Defaults, fresh: bool) -> Any:
    _check(folder, description, defaults, fresh)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error}. Choose another one.") from error
    held = lock.acquire(folder / ".lock", what=folder)
    if fresh:
        for name in CONTENTS:
            if (folder / name).is_dir():
                shutil.rmtree(folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
    if not (folder / "config.json").exists():
        provenance.write_json(folder / "config.json", description)
    return held


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix: content}
    parts = (_flat(value, f"{prefix}.{key}" if prefix else key) for key, value in content.items())
    return {key: value for part in parts for key, value in part.items()}
