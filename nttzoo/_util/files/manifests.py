"""Manifests: the size and SHA-256 of every file of a folder, and the checks against them."""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nttzoo._util.files.reading import check_size, read_bytes, read_json, reason, sha256
from nttzoo._util.files.writing import PART, to_json, write_text
from nttzoo.errors import FileError

MANIFEST = "manifest.json"
FORMAT = 1
OLD = ".old"  # a folder that is being replaced, on systems that cannot swap two folders
CURE = "Take a copy that is whole, or make it again."


def walk(folder: Path, *, enter: Callable[[Path], bool] = lambda _: True) -> Iterator[Path]:
    """All files below a folder; links, pipes and devices raise an error. `enter` says which folders to search."""
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
        raise FileError(folder, f"cannot be read: {reason(error)}") from error


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
    return path.name.startswith(".") and path.name.endswith((PART, OLD, ".lock"))


def describe(path: Path) -> dict[str, Any]:
    """What a manifest says of a file."""
    digest = sha256(path)
    return {"size": path.stat().st_size, "sha256": digest}


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
            raise FileError(path, f"lacks the size or sha256 of {name!r}")
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
