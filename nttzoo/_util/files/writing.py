"""Writing a file so that a crash leaves the old one or the new one, never a part."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nttzoo._util.files.reading import reason
from nttzoo.errors import RunError

PART = ".part"  # how the names of files and folders end that are being written


def to_json(content: Any) -> str:
    """JSON text as nttzoo writes it; NaN and infinity raise an error."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Writes a file atomically."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file atomically."""

    def write(part: Path) -> None:
        part.write_bytes(content)

    write_file(path, write)


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Has `write` make a file under another name beside `path`, and puts it in place in one atomic step."""
    part = part_of(path)
    try:
        write(part)
        flush(part)
        os.replace(part, path)
        flush(path.parent)
    except OSError as error:
        raise RunError(f"cannot write {path}: {reason(error)}. Free some space, or write elsewhere.") from error
    finally:
        part.unlink(missing_ok=True)


def part_of(target: Path) -> Path:
    """A name beside `target` that no other process or thread uses."""
    return target.with_name(f".{target.name}-{os.getpid()}-{time.monotonic_ns()}{PART}")


def flush_folder(folder: Path) -> None:
    """Has the disk store all files of a folder now."""
    for inside, _, names in os.walk(folder):
        for name in names:
            flush(Path(inside) / name)
        flush(Path(inside))


def flush(path: Path) -> None:
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
