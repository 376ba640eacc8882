"""The latest states of a run, by step."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from nttzoo._util import files, memory
from nttzoo._util.hosts import is_first, together
from nttzoo.errors import FileError, NttzooError, RunError

ARRAYS = "default"  # the name that Orbax's own manager gave it, so that states of earlier versions can be read


class Checkpoints:
    """The latest states of a run. Each is a folder with a manifest, complete or absent.

    Every process of a distributed run has to call every method.
    """

    def __init__(self, folder: Path, *, keep: int = 2):
        self.folder, self.keep = folder, keep
        together(lambda: folder.mkdir(parents=True, exist_ok=True) if is_first() else None)

    def steps(self) -> list[int]:
        """The steps of which there are states, whole or damaged, in order."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(int(path.name) for path in found if path.name.isdecimal() and path.is_dir())

    def latest(self) -> int | None:
        """The step of the latest state, or None."""
        return max(self.steps(), default=None)

    def latest_whole(self) -> int | None:
        """The step of the latest state whose files are as they were written; says so if a later one is damaged."""
        step = together(lambda: self._latest_whole() if is_first() else -1)
        if jax.process_count() > 1:
            step = int(multihost_utils.broadcast_one_to_all(np.int32(step)))
        return None if step < 0 else step

    def _latest_whole(self) -> int:
        steps = self.steps()
        for step in reversed(steps):
            try:
                files.verify(self.folder / str(step))
            except FileError as error:
                warnings.warn(f"{error} The run continues from an earlier state.", stacklevel=4)
            else:
                return step
        if steps:
            raise RunError(f"no state in {self.folder} is whole. --fresh starts the run over.")
        return -1

    def save(self, step: int, state: Any, texts: Mapping[str, str] | None = None) -> None:
        """Saves a tree of arrays, and files of text beside it, as the state after `step` steps."""
        target, part = self.folder / str(step), self.folder / f".{step}{files.PART}"
        try:
            together(lambda: _empty(part) if is_first() else None)
            _write(part / ARRAYS, state)
            together(lambda: self._put(part, target, texts or {}) if is_first() else None)
            memory.release()  # each save has threads of its own, whose fragments would add up over hours
        except (OSError, ValueError, RunError) as error:
            if isinstance(error, NttzooError) and jax.process_count() > 1:
                raise
            # The storage library reports a full disk as a ValueError.
            shutil.rmtree(part, ignore_errors=True)
            raise RunError(
                f"the state at step {step} could not be saved in {self.folder}: {error}. The latest whole one is that "
                f"of step {self.latest()}; free some space and run the same command again."
            ) from error

    def _put(self, part: Path, target: Path, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            files.write_text(part / name, text)
        files.seal(part)
        files.flush_folder(part)
        files.switch(part, target)
        # States after this one are of a course that was given up, because they were damaged.
        step = int(target.name)
        kept = [known for known in self.steps() if known <= step][-self.keep :]
        for known in set(self.steps()) - set(kept):
            shutil.rmtree(self.folder / str(known), ignore_errors=True)

    def restore(self, step: int, like: Any) -> Any:
        """The state after `step` steps, with the structure, types and devices of `like`."""
        import orbax.checkpoint as ocp
        from etils import epath

        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, _by_name(like))
        folder = self.folder / str(step) / ARRAYS
        with ocp.StandardCheckpointer() as checkpointer:
            try:
                found = checkpointer.restore(epath.Path(folder.absolute()), shapes)
            except Exception as error:  # of an earlier version, without a manifest: anything
                raise FileError(folder, f"cannot be restored: {error}", "--fresh starts the run over.") from error
        return jax.tree.unflatten(jax.tree.structure(like), [found[name] for name in _by_name(like)])

    def text(self, step: int, name: str) -> str | None:
        """A file of text that was saved with a state; None if there is none, as in earlier versions."""
        path = self.folder / str(step) / name
        return files.read_bytes(path).decode() if path.is_file() else None

    def close(self) -> None:
        """Ends the use of the folder."""


def _write(folder: Path, state: Any) -> None:
    """Has all processes write their parts of a tree."""
    import orbax.checkpoint as ocp
    from etils import epath

    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(epath.Path(folder.absolute()), _by_name(state))


def _empty(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _by_name(tree: Any) -> dict[str, Any]:
    """The leaves of any tree under names that tell where they were."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def check_free_space(folder: Path, size: int) -> None:
    """Raises unless the disk has space for `size` bytes."""
    free = shutil.disk_usage(folder).free
    if free < size:
        raise RunError(
            f"{folder} has space for {free / 2**20:,.0f} MiB; this run may need {size / 2**20:,.0f} MiB. Free some "
            "space, or choose another folder with --out."
        )
