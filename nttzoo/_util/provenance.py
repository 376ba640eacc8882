"""Results with their origin: every figure is written as JSON beside the command, versions and machine that made it."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import sys
import time
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

from nttzoo._util import files
from nttzoo._util.checks import check_path
from nttzoo.errors import OptionError

PACKAGES = ("nttzoo", "jax", "jaxlib", "flax", "optax", "numpy")


def origin(command: str | None = None) -> dict[str, Any]:
    """The command, date, versions and machine of a measurement."""
    return {
        "command": command or shlex.join([*_program(), *map(_without_folders, sys.argv[1:])]),
        "date": time.strftime("%Y-%m-%d"),
        "code": code_hash(),
        "python": platform.python_version(),
        "versions": {name: metadata.version(name) for name in PACKAGES},
        "machine": {
            "processor": processor(),
            "cores": psutil.cpu_count(),
            "memory_gib": round(psutil.virtual_memory().total / 2**30),
        },
    }


@cache
def code_hash() -> str:
    """Twelve hex digits that tell one state of this package's source from another: versions are too coarse."""
    package = Path(__file__).parents[1]
    total = hashlib.sha256()
    for path in sorted(path for path in package.rglob("*") if path.suffix in (".py", ".c", ".cc", ".h")):
        content = path.read_bytes()
        total.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode() + content)
    return total.hexdigest()[:12]


def _program() -> list[str]:
    """How this process was started: a script with its folder, an installed command by its name."""
    program = Path(sys.argv[0])
    return ["python", "/".join(program.parts[-2:])] if program.suffix == ".py" else [program.name]


def _without_folders(argument: str) -> str:
    """Absolute paths differ between machines: only the last part is kept."""
    return f".../{Path(argument).name}" if Path(argument).is_absolute() else argument


def check_writable(path: str | os.PathLike[str]) -> Path:
    """The path, if a file can be written there; checked before the work, not after it."""
    check_path("path", path)
    target = Path(path)
    if not target.parent.is_dir():
        raise OptionError(f"cannot write {target}: there is no folder {target.parent}. Make it first.")
    if target.is_dir() or not os.access(target if target.exists() else target.parent, os.W_OK):
        raise OptionError(f"cannot write {target}: it is a folder, or not writable.")
    return target


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Writes a JSON file atomically."""
    files.write_text(check_writable(path), files.to_json(content))


def read_json(path: str | os.PathLike[str]) -> Any:
    """The content of a JSON file, or an error that names it."""
    return files.read_json(path)


def processor() -> str:
    """The name of this machine's processor."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
