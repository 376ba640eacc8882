"""Checkpoints of `fit`: the state of a training in a folder, replaced atomically."""

from __future__ import annotations

import hashlib
import io
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nttzoo._util import files, schema
from nttzoo.data import Dataset
from nttzoo.errors import FileError, TrainingError
from nttzoo.training.config import TrainConfig
from nttzoo.training.history import History

SAVE_SECONDS = 30.0
ARRAYS_LIMIT = 2**33
_STATE, _ARRAYS = "training.json", "arrays.npz"


@dataclass(frozen=True)
class Saved:
    """A training after some epochs."""

    history: History
    arrays: dict[str, np.ndarray]


class Checkpoint:
    """The folder of one training: whose it is, and its last saved state."""

    def __init__(self, folder: Path, config: TrainConfig, data: Dataset, start: np.ndarray):
        self.folder = folder
        self._about = {
            "config": {key: value for key, value in config.to_dict().items() if key not in ("engine", "epochs")},
            "data": {"name": data.name, "images": len(data.train), "sha256": _digest(data.train.labels)},
            "start": _digest(start),  # the weights that the training began with
        }
        self._saved = time.monotonic()

    def read(self) -> Saved | None:
        """The state to resume from; None if there is none.

        Raises:
          TrainingError: if the folder holds another training.
          FileError: if a file of it was changed.
        """
        files.recover(self.folder)
        if not (self.folder / files.MANIFEST).exists():
            return None
        files.verify(self.folder)
        state = schema.read(self.folder / _STATE, schema.TrainingFile, what="the state of a training")
        for key, mine in self._about.items():
            if state.get(key) != mine:
                raise TrainingError(
                    f"{self.folder} holds another training: its {key} is {state.get(key)}, not {mine}. Name another "
                    "folder, or delete this one."
                )
        return Saved(History.from_dict(state["history"]), _read_arrays(self.folder / _ARRAYS))

    def write(self, history: History, arrays: dict[str, np.ndarray], *, now: bool) -> None:
        """Saves a state, unless one was saved a moment ago; `now`: in any case."""
        if not now and time.monotonic() - self._saved < SAVE_SECONDS:
            return
        content: Any = {**self._about, "history": history.to_dict()}
        with files.new_folder(self.folder) as part:
            np.savez(part / _ARRAYS, allow_pickle=False, **arrays)
            files.write_text(part / _STATE, files.to_json(content))
        self._saved = time.monotonic()


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    content = files.read_bytes(path, limit=ARRAYS_LIMIT)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = archive.infolist()
        # As written they are not compressed: a small file cannot become a large array.
        if any(member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1 for member in members):
            raise FileError(path, "holds compressed arrays, which nttzoo does not write")
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            return dict(arrays)
    except (zipfile.BadZipFile, ValueError, EOFError, MemoryError, SyntaxError) as error:
        raise FileError(path, f"cannot be read: {error}") from error


def _digest(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
