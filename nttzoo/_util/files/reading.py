"""Reading files that may be damaged, huge or no files at all: every failure is a `FileError`."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

import msgspec

from nttzoo.errors import FileError

TEXT_LIMIT = 2**25  # bytes of a JSON file; the largest of ours have a few hundred kilobytes
DEPTH_LIMIT = 64  # of lists and objects in each other; ours have about ten levels


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[BufferedReader]:
    """A regular file to read from; a pipe or a device raises an error, instead of blocking."""
    try:
        # Opening a pipe without O_NONBLOCK would wait for somebody to write to it.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (OSError, ValueError) as error:
        raise FileError(path, f"cannot be read: {reason(error)}") from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise FileError(path, "cannot be read: it is not a regular file")
        with os.fdopen(handle, "rb", closefd=False) as file:
            yield file
    except OSError as error:
        raise FileError(path, f"cannot be read: {reason(error)}") from error
    finally:
        os.close(handle)


def read_bytes(path: str | os.PathLike[str], *, limit: int = TEXT_LIMIT) -> bytes:
    """The content of a regular file of at most `limit` bytes."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise FileError(path, f"has {size:,} bytes; at most {limit:,} were expected")
        content = file.read(limit + 1)
    if len(content) > limit:  # it grew meanwhile
        raise FileError(path, f"has more than {limit:,} bytes")
    return content


def read_json(path: str | os.PathLike[str], *, limit: int = TEXT_LIMIT) -> Any:
    """The content of a JSON file."""
    return parse_json(path, read_bytes(path, limit=limit))


def parse_json(path: str | os.PathLike[str], content: bytes) -> Any:
    """The value of JSON text that was read from `path`. NaN, infinity and numbers beyond a double are not JSON."""
    try:
        value = msgspec.json.decode(content)
    except RecursionError as error:
        raise FileError(path, "cannot be read: it is nested too deeply") from error
    except ValueError as error:
        raise FileError(path, f"cannot be read: {error}") from error
    level = [value]
    for _ in range(DEPTH_LIMIT):
        level = [inner for outer in level for inner in _inside(outer)]
    if level:
        raise FileError(path, "cannot be read: it is nested too deeply")
    return value


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def sha256(path: Path) -> str:
    """The SHA-256 of a file, as hex digits."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_regular(path: Path, *, limit: int) -> None:
    """Raises unless `path` is a regular file, or a link to one, of at most `limit` bytes; for files others read."""
    try:
        kind = path.stat().st_mode
    except OSError as error:
        raise FileError(path, f"cannot be read: {reason(error)}") from error
    if not stat.S_ISREG(kind):
        raise FileError(path, "cannot be read: it is not a regular file")
    check_size(path, limit)


def check_size(path: Path, limit: int) -> None:
    """Raises if a file is larger than it can be."""
    if (size := path.stat().st_size) > limit:
        raise FileError(path, f"has {size:,} bytes; at most {limit:,} were expected")


def reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
