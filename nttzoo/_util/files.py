"""Files and folders on disk: written whole or not at all, and read only if they are what was written.

A folder is written like this:

    with files.new_folder(target) as part:   # an empty folder beside `target`
        ...                                  # write anything below `part`

Leaving the block adds `manifest.json` with the size and SHA-256 of every file, flushes everything to the disk and puts
the folder in place of `target` in one atomic step. If the block raises, or the process is killed at any point, `target`
is what it was before. It is read like this:

    files.recover(target)   # only if `target` itself may be missing after a crash
    files.verify(target)    # raises FileError with the name of the first file that was changed, lost or added

A folder inside a folder may have a manifest of its own (`student/trained`): the outer manifest leaves it out. Folders
of earlier versions have no manifest; `verify` warns once and accepts them, and `seal` adds one.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from nttzoo.errors import FileError, RunError

MANIFEST = "manifest.json"
FORMAT = 1
TEXT_LIMIT = 2**25  # bytes of a JSON file; the largest of ours have a few hundred kilobytes
PART = ".part"  # how the names of files and folders end that are being written
OLD = ".old"  # a folder that is being replaced, on systems that cannot swap two folders
LEGACY = ("model.json", "arrays", "trained")  # what earlier versions wrote without a manifest
CURE = "Take a copy that is whole, or make it again."
_STALE_SECONDS = 3600.0
_LINUX_SWAP = 2  # RENAME_EXCHANGE


# Reading.


def read_bytes(path: str | os.PathLike[str], *, limit: int = TEXT_LIMIT) -> bytes:
    """The content of a regular file of at most `limit` bytes; a pipe or a device is refused, not waited for."""
    try:
        # Opening a pipe without O_NONBLOCK would wait for somebody to write to it.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError) as error:
        raise FileError(path, f"cannot be read: {_reason(error)}") from error
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise FileError(path, "cannot be read: it is not a regular file")
        if found.st_size > limit:
            raise FileError(path, f"has {found.st_size:,} bytes; at most {limit:,} were expected")
        with os.fdopen(handle, "rb", closefd=False) as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise FileError(path, f"cannot be read: {_reason(error)}") from error
    finally:
        os.close(handle)
    if len(content) > limit:  # it grew meanwhile
        raise FileError(path, f"has more than {limit:,} bytes")
    return content


def read_json(path: str | os.PathLike[str], *, limit: int = TEXT_LIMIT) -> Any:
    """The content of a JSON file."""
    return parse_json(path, read_bytes(path, limit=limit))


def parse_json(path: str | os.PathLike[str], content: bytes) -> Any:
    """The value of JSON text that was read from `path`. NaN, infinity and numbers beyond a double are not JSON."""
    try:
        return msgspec.json.decode(content)
    except RecursionError as error:
        raise FileError(path, "cannot be read: it is nested too deeply") from error
    except ValueError as error:
        raise FileError(path, f"cannot be read: {error}") from error


def sha256(path: Path) -> str:
    """The SHA-256 of a file, as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def walk(folder: Path, *, enter: Callable[[Path], bool] = lambda _: True) -> Iterator[Path]:
    """All files below a folder; symbolic links, pipes and devices are refused. `enter` says which folders to search."""
    left = [folder]
    try:
        while left:
            for found in sorted(os.scandir(left.pop()), key=lambda found: found.name):
                path = Path(found.path)
                if found.is_symlink() or not (found.is_file() or found.is_dir()):
                    what = "a symbolic link" if found.is_symlink() else "not a regular file"
                    raise FileError(path, f"is {what}; only regular files belong here")
                if found.is_file():
                    yield path
                elif enter(path):
                    left.append(path)
    except OSError as error:
        raise FileError(folder, f"cannot be read: {_reason(error)}") from error


def own_files(folder: Path) -> dict[str, Path]:
    """{path below the folder: path} of the files that its manifest has to list, sorted.

    Left out are the manifest, what is being written (`.*.part`, `.*.old`, `.*.lock`) and folders with a manifest of
    their own.
    """
    inside = walk(folder, enter=lambda path: not is_temporary(path) and not (path / MANIFEST).is_file())
    kept = [path for path in inside if not is_temporary(path) and path != folder / MANIFEST]
    return {path.relative_to(folder).as_posix(): path for path in sorted(kept)}


def is_temporary(path: Path) -> bool:
    """Whether a file or folder is being written, or was when a process was killed."""
    return path.name.startswith(".") and path.suffix in (PART, OLD, ".lock")


# Manifests.


def describe(path: Path) -> dict[str, Any]:
    """What a manifest says of a file."""
    return {"size": path.stat().st_size, "sha256": sha256(path)}


def seal(folder: Path, soon: Mapping[str, bytes] | None = None) -> None:
    """Writes the manifest of a folder as it is now, and as it will be when the files of `soon` are written."""
    content = {name: describe(path) for name, path in own_files(folder).items()}
    for name, text in (soon or {}).items():
        content[name] = {"size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    write_text(folder / MANIFEST, to_json({"format": FORMAT, "files": content}))


def verify(folder: Path, *, limit: int | None = None) -> None:
    """Raises unless the files of a folder are exactly those of its manifest; without a manifest, warns.

    Args:
      folder: what `new_folder` or `seal` wrote.
      limit: the largest size that a file may have, checked before any file is read.

    Raises:
      FileError: with the name of the first file that was changed, lost or added.
    """
    if not folder.is_dir():
        raise FileError(folder, "does not exist, or is not a folder")
    present = own_files(folder)
    for path in present.values():
        if limit is not None:
            check_size(path, limit)
    path = folder / MANIFEST
    if not os.path.lexists(path):
        warn_of_no_manifest(folder)
        return
    check_listed(folder, read_manifest(path), present, owner=folder.name, cure=CURE)


@contextmanager
def verified_copy(folder: Path, *, limit: int) -> Iterator[Path]:
    """A private copy of a folder, made of bytes that were compared with its manifest; without a manifest, warns.

    Reading the copy, nobody can exchange a file between check and use. `limit` is the largest size of a file.
    """
    if not folder.is_dir():
        raise FileError(folder, "does not exist, or is not a folder")
    present = own_files(folder)
    if os.path.lexists(folder / MANIFEST):
        listed = read_manifest(folder / MANIFEST)
    else:
        warn_of_no_manifest(folder)
        listed = None
    with copied(folder, listed, present, owner=folder.name, cure=CURE, limit=limit) as copy:
        yield copy


@contextmanager
def copied(
    root: Path, listed: Mapping[str, Any] | None, present: Mapping[str, Path], *, owner: str, cure: str, limit: int
) -> Iterator[Path]:
    """A private copy of the files that are present below `root`, if they are those that are listed."""
    _check_names(root, listed if listed is not None else present, present, owner=owner, cure=cure)
    for path in present.values():
        check_size(path, limit)
    with tempfile.TemporaryDirectory(prefix="nttzoo-") as temporary:
        for name, path in present.items():
            content = read_bytes(path, limit=limit)
            if listed is not None and not _is_listed(content, listed[name]):
                raise FileError(path, f"of {owner!r} was changed or cut short", cure)
            (Path(temporary) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(temporary) / name).write_bytes(content)
        yield Path(temporary)


def _is_listed(content: bytes, expected: Mapping[str, Any]) -> bool:
    return len(content) == expected["size"] and hashlib.sha256(content).hexdigest() == expected["sha256"]


def check_regular(path: Path, *, limit: int) -> None:
    """Raises unless `path` is a regular file, or a link to one, of at most `limit` bytes; for files others read."""
    try:
        kind = path.stat().st_mode
    except OSError as error:
        raise FileError(path, f"cannot be read: {_reason(error)}") from error
    if not stat.S_ISREG(kind):
        raise FileError(path, "cannot be read: it is not a regular file")
    check_size(path, limit)


def check_size(path: Path, limit: int) -> None:
    """Raises if a file is larger than it can be."""
    if (size := path.stat().st_size) > limit:
        raise FileError(path, f"has {size:,} bytes; at most {limit:,} were expected")


def warn_of_no_manifest(folder: Path) -> None:
    """Says that a folder cannot be checked."""
    warnings.warn(
        f"{folder} was written by an earlier version of nttzoo, without a manifest: whether its files are whole cannot "
        "be checked.",
        stacklevel=4,
    )


def read_manifest(path: Path) -> dict[str, dict[str, Any]]:
    """{path below the folder: size and SHA-256} from a manifest file."""
    content = read_json(path)
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict):
        raise FileError(path, "is not a manifest of nttzoo")
    if content.get("format") != FORMAT:
        raise FileError(path, f"has format {content.get('format')!r}; this version of nttzoo reads {FORMAT}")
    for name, entry in content["files"].items():
        if not isinstance(entry, dict) or type(entry.get("size")) is not int or type(entry.get("sha256")) is not str:
            raise FileError(path, f"does not tell size and sha256 of {name!r}")
    return content["files"]


def check_listed(root: Path, listed: Mapping[str, Any], present: Mapping[str, Path], *, owner: str, cure: str) -> None:
    """Raises unless the files that are present below `root` are those that are listed, byte for byte."""
    _check_names(root, listed, present, owner=owner, cure=cure)
    for name, expected in listed.items():
        path = present[name]
        if path.stat().st_size != expected["size"] or sha256(path) != expected["sha256"]:
            raise FileError(path, f"of {owner!r} was changed or cut short", cure)


def _check_names(root: Path, listed: Mapping[str, Any], present: Mapping[str, Path], *, owner: str, cure: str) -> None:
    for extra in sorted(present.keys() - listed.keys()):
        raise FileError(root / extra, f"does not belong to {owner!r}", "Remove it.")
    for missing in sorted(listed.keys() - present.keys()):
        raise FileError(root / missing, f"of {owner!r} is missing", cure)


# Writing.


def to_json(content: Any) -> str:
    """JSON text as nttzoo writes it; NaN and infinity are refused."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Writes a file, whole or not at all."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, whole or not at all."""

    def write(part: Path) -> None:
        part.write_bytes(content)

    write_file(path, write)


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Has `write` make a file under another name beside `path`, and puts it in place in one atomic step."""
    part = _part_of(path)
    try:
        write(part)
        _flush(part)
        os.replace(part, path)
        _flush(path.parent)
    except OSError as error:
        raise RunError(f"cannot write {path}: {_reason(error)}. Free some space, or write elsewhere.") from error
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def new_folder(target: Path, *, manifest: bool = True) -> Iterator[Path]:
    """An empty folder to write to, which takes the place of `target` when the block ends.

    Args:
      target: a path that does not exist yet, an empty folder, or a folder that `new_folder` or `seal` made; any other
        folder is refused, because replacing it would delete what somebody else put there.
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
        part = _part_of(target)
        part.mkdir()
    except OSError as error:
        raise RunError(f"cannot write {target}: {_reason(error)}. Choose another place.") from error
    try:
        yield part
        if manifest:
            seal(part)
        flush_folder(part)
        switch(part, target)
    except OSError as error:
        raise RunError(f"cannot write {target}: {_reason(error)}. Free some space, or write elsewhere.") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def private_folder(folder: Path) -> None:
    """Makes a folder that is the user's alone; one that others could have written to is refused.

    Programs are kept in it: who can write to it decides what this user runs.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        raise RunError(f"cannot make the folder {folder}: {_reason(error)}.") from error
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
        _flush(target.parent)
        shutil.rmtree(part, ignore_errors=True)
    else:
        # Two steps. If the process is killed between them, `recover` undoes the first.
        old = target.with_name(f".{target.name}{OLD}")
        shutil.rmtree(old, ignore_errors=True)
        os.rename(target, old)
        os.rename(part, target)
        _flush(target.parent)
        shutil.rmtree(old, ignore_errors=True)
    _flush(target.parent)


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


def _part_of(target: Path) -> Path:
    """A name beside `target` that no other process or thread uses."""
    return target.with_name(f".{target.name}-{os.getpid()}-{time.monotonic_ns()}{PART}")


def _sweep(target: Path) -> None:
    """Deletes what processes that were killed left beside `target`; younger leftovers may be somebody's work."""
    for path in target.parent.glob(f".{target.name}-*{PART}"):
        with suppress(FileNotFoundError):
            if time.time() - path.lstat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def flush_folder(folder: Path) -> None:
    """Has the disk store all files of a folder now."""
    for inside, _, names in os.walk(folder):
        for name in names:
            _flush(Path(inside) / name)
        _flush(Path(inside))


def _flush(path: Path) -> None:
    """Has the disk store a file, or the names in a folder, now: a rename may otherwise survive what it names."""
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0)
    try:
        handle = os.open(path, flags)
    except PermissionError:
        return  # Windows does not open folders
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(handle)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
