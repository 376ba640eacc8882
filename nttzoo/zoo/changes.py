"""Changes of a zoo's folder that happen as a whole: entries, index and MODEL_CARD.md cannot switch by one rename.

New files are written to `.publishing/`, which has the form of the zoo's folder. Then `.publishing/journal.json` lists
what is to be replaced. From then on the change is committed: the next reader or writer completes it if its process was
killed. Without a journal, `.publishing/` is an aborted change, and the next writer deletes it. Writers hold a lock.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from nttzoo._util import files, lock, schema
from nttzoo.errors import FileError, RunError

STAGE = ".publishing"
JOURNAL = "journal.json"
LOCK = ".nttzoo.lock"
WAIT_SECONDS = 600.0
_PART = r"[A-Za-z0-9][A-Za-z0-9_.+=-]{0,199}"


class Journal(Struct):
    """The paths below the zoo's folder, files and folders of entries, that a change replaces."""

    format: int
    paths: list[Annotated[str, Meta(pattern=rf"^(MODEL_CARD\.md|(models|checkpoints)/{_PART}(/{_PART})?)\Z")]]


@contextmanager
def changing(home: Path) -> Iterator[Path]:
    """A folder for what is to be replaced below `home`: when the block ends all of it is, and if it raises nothing."""
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"cannot make the folder {home}: {error}. Choose another one.") from error
    held = lock.acquire(home / LOCK, what=home, wait=WAIT_SECONDS)
    stage = home / STAGE
    try:
        _settle(home)
        stage.mkdir()
        try:
            yield stage
            _commit(home)
        except BaseException:
            if not (stage / JOURNAL).exists():
                shutil.rmtree(stage, ignore_errors=True)
            raise
        _settle(home)
    finally:
        held.release()


def settle(home: Path) -> None:
    """Completes a change that was cut off, if there is one."""
    path = home / STAGE / JOURNAL
    if not os.path.lexists(path):
        return
    if not os.access(home, os.W_OK):
        raise FileError(
            path, "records an unfinished change", "`nttzoo verify`, run by a user with write access, completes it."
        )
    held = lock.acquire(home / LOCK, what=home, wait=WAIT_SECONDS)
    try:
        _settle(home)
    finally:
        held.release()


def _commit(home: Path) -> None:
    """Writes the journal: folders of new entries as a whole, single files of others, the index last."""
    stage = home / STAGE
    paths = []
    for kind in ("models", "checkpoints"):
        for folder in sorted(path for path in (stage / kind).glob("*") if path.is_dir()):
            new = (stage / "models" / folder.name / "model.onnx").exists()
            chosen = [folder] if new else sorted(folder.iterdir())
            paths += [path.relative_to(stage).as_posix() for path in chosen]
    paths += [path for path in ("models/index.json", "MODEL_CARD.md") if (stage / path).exists()]
    if not paths:
        return
    files.flush_folder(stage)
    schema.validate(stage / JOURNAL, {"format": 1, "paths": paths}, Journal)
    files.write_text(stage / JOURNAL, files.to_json({"format": 1, "paths": paths}))


def _settle(home: Path) -> None:
    """Completes what has a journal and deletes what has none. Whatever part was done before is not done again."""
    stage = home / STAGE
    if stage.is_symlink():
        raise FileError(stage, "is a symbolic link; only regular files belong here")
    if not stage.exists():
        return
    if os.path.lexists(stage / JOURNAL):
        list(files.walk(stage))  # refuses links
        for kind in ("models", "checkpoints"):
            for folder in (home / kind, *(home / kind).glob("*")):
                if folder.is_symlink():  # what is moved there would end up elsewhere
                    raise FileError(folder, "is a symbolic link; only folders belong here")
        for path in schema.read(stage / JOURNAL, Journal, what="a journal of nttzoo")["paths"]:
            new, target, old = stage / path, home / path, stage / "old" / path
            if not new.exists():
                continue  # it is in its place already
            target.parent.mkdir(parents=True, exist_ok=True)
            if new.is_dir() and os.path.lexists(target):
                old.parent.mkdir(parents=True, exist_ok=True)
                os.rename(target, old)
            os.replace(new, target)
        (stage / JOURNAL).unlink()
    shutil.rmtree(stage)
