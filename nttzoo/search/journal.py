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
from pathlib import Path
from typing import Any

from nttzoo import provenance
from nttzoo.checkpoint import Checkpoints
from nttzoo.errors import RunError
from nttzoo.search.devices import is_first

CONTENTS = ("checkpoints", "students", "metrics.jsonl", "summary.json", "report.png", "config.json")


class Journal:
    """A run's memory: reports in `lines`, and, if there is a folder, both reports and states on disk."""

    def __init__(self, folder: Path | None = None, config: dict[str, Any] | None = None, *, fresh: bool = False):
        self.lines: list[dict[str, Any]] = []
        self.folder = folder
        self._checkpoints: Checkpoints | None = None
        if folder is None:
            return
        if is_first():
            _claim(folder, config or {}, fresh)
        self._checkpoints = Checkpoints(folder / "checkpoints")  # waits for the first process

    def go_on(self, state: Any) -> tuple[Any, int]:
        """The latest state and its step; the given one and 0 if there is none. Later reports are forgotten."""
        step = self._checkpoints.latest() if self._checkpoints else None
        if step is None or self._checkpoints is None or self.folder is None:
            self._rewrite()
            return state, 0
        path = self.folder / "metrics.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        self.lines = [line for line in found if line["step"] <= step]
        self._rewrite()
        return self._checkpoints.restore(step, state), step

    def report(self, line: dict[str, Any]) -> None:
        """Adds one line of metrics."""
        self.lines.append(line)
        if self.folder and is_first():
            with (self.folder / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")

    def save(self, step: int, state: Any) -> None:
        """Keeps a state to go on from."""
        if self._checkpoints:
            if is_first():
                _flush(self.folder / "metrics.jsonl")  # type: ignore[operator]
            self._checkpoints.save(step, state)

    def close(self) -> None:
        """Ends the use of the folder."""
        if self._checkpoints:
            self._checkpoints.close()

    def _rewrite(self) -> None:
        if self.folder and is_first():
            part = self.folder / ".metrics.jsonl.part"
            part.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
            os.replace(part, self.folder / "metrics.jsonl")


def _flush(path: Path) -> None:
    """A report must not be younger than the state that says it was made, whatever happens to the machine."""
    with path.open("a") as file:
        os.fsync(file.fileno())


def _claim(folder: Path, config: dict[str, Any], fresh: bool) -> None:
    """Makes the folder this run's own, or says whose it is."""
    path = folder / "config.json"
    if fresh and path.exists():
        for name in CONTENTS:
            (shutil.rmtree if (folder / name).is_dir() else lambda p: p.unlink(missing_ok=True))(folder / name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {error}. Choose another with --out.") from error
    if path.exists():
        theirs, ours = _flat(provenance.read_json(path)), _flat(json.loads(json.dumps(config)))
        differing = [key for key in sorted(theirs | ours) if theirs.get(key) != ours.get(key)]
        if differing:
            lines = [f"  {key}: {theirs.get(key)!r} there, {ours.get(key)!r} now" for key in differing]
            raise RunError(
                f"{folder} belongs to another run:\n" + "\n".join(lines) + "\n"
                "Choose another folder with --out, or start over there with --fresh."
            )
    elif any(folder.iterdir()):
        raise RunError(f"{folder} is not empty and not the folder of a run. Choose another with --out.")
    else:
        provenance.write_json(path, config)


def _flat(content: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(content, dict):
        return {prefix: content}
    parts = (_flat(value, f"{prefix}.{key}" if prefix else key) for key, value in content.items())
    return {key: value for part in parts for key, value in part.items()}
