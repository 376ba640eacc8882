"""Replacing a whole folder in one atomic step."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nttzoo._util.files.manifests import MANIFEST, OLD, own_files, read_manifest, seal
from nttzoo._util.files.reading import reason
from nttzoo._util.files.writing import PART, flush, flush_folder, part_of
from nttzoo.errors import FileError, RunError

LEGACY = ("model.json", "arrays", "trained")  # what earlier versions wrote without a manifest
_STALE_SECONDS = 3600.0
_LINUX_SWAP = 2  # RENAME_EXCHANGE


@contextmanager
def new_folder(target: Path, *, manifest: bool = True) -> Iterator[Path]:
    """An empty folder to write to, which takes the place of `target` when the block ends.

    Args:
      target: a path that does not exist yet, an empty folder, or a folder that `new_folder` or `seal` made; any other
        folder raises an error, because replacing it would delete files that nttzoo did not write.
      manifest: whether to add a manifest.

    Yields:
      The folder to write to. Files of the old `target`, folders inside it included, are not taken over.
    """
    target = target.absolute()
    check_replaceable(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        recover(target)
        _sweep(target)
        part = part_of(target)
        part.mkdir()
    except OSError as error:
        raise RunError(f"cannot write {target}: {reason(error)}. Choose another place.") from error
    try:
        yield part
        if manifest:
            seal(part)
        flush_folder(part)
        switch(part, target)
    except OSError as error:
        raise RunError(f"cannot write {target}: {reason(error)}. Free some space, or write elsewhere.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_folder(folder: Path) -> None:
    """Raises unless `folder` is one to write in, or can be made; makes nothing."""
    nearest = next(parent for parent in (folder, *folder.absolute().parents) if os.path.lexists(parent))
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        raise RunError(f"cannot write {folder}: {nearest} is not a folder, or not yours to write. Choose another one.")


def private_folder(folder: Path) -> None:
    """Makes a folder that only the user can write to; raises if others could have written to it.

    Programs are kept in it: who can write to it decides what this user runs.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {reason(error)}.") from error
    if not stat.S_ISDIR(found.st_mode):
        raise FileError(folder, "is not a folder", "Delete it.")
    if hasattr(os, "geteuid") and (found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077):
        raise FileError(
            folder, "must belong to you and be closed to others (mode 700)", f"Delete it, or `chmod 700 {folder}`."
        )


def check_replaceable(target: Path) -> None:
    """Raises unless `target` may be written as a folder without deleting what is not ours."""
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir():
        raise RunError(f"cannot write {target}: it is not a folder. Choose another place.")
    if (target / MANIFEST).is_file():
        known = set(read_manifest(target / MANIFEST))
    else:
        known = {name for name in own_files(target) if name.partition("/")[0] in LEGACY}
    for name in own_files(target).keys() - known:
        raise RunError(f"cannot write {target}: {name} in it was not written by nttzoo. Choose another place.")


def switch(part: Path, target: Path) -> None:
    """Puts the folder `part` in place of `target`; what `target` was before is deleted."""
    if not target.exists():
        os.rename(part, target)
    elif _swap(part, target):
        flush(target.parent)
        shutil.rmtree(part, ignore_errors=True)
    else:
        # Two steps. If the process is killed between them, `recover` undoes the first.
        old = target.with_name(f".{target.name}{OLD}")
        shutil.rmtree(old, ignore_errors=True)
        os.rename(target, old)
        os.rename(part, target)
        flush(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    flush(target.parent)


def recover(target: Path) -> None:
    """Brings back a folder if a process was killed while it was replacing it; otherwise does nothing."""
    old = target.with_name(f".{target.name}{OLD}")
    if not os.path.lexists(target) and old.is_dir():
        with suppress(FileNotFoundError):  # another process may be faster
            os.rename(old, target)


def _swap(one: Path, other: Path) -> bool:
    """Exchanges two folders in one step where the system can: Linux, on most file systems."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, TypeError, OSError):
        return False
    here = -100  # AT_FDCWD
    if rename(here, os.fsencode(one), here, os.fsencode(other), _LINUX_SWAP) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _sweep(target: Path) -> None:
    """Deletes what killed processes left beside `target`; younger leftovers may belong to a running process."""
    for path in target.parent.glob(f".{target.name}-*{PART}"):
        with suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
