"""Libraries made by the system's compiler when they are needed, and the folder that keeps them."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Literal

import platformdirs

from nttzoo._util import files
from nttzoo.errors import ExportError

Language = Literal["C", "C++"]

LIBRARY_LIMIT = 2**31  # bytes
# Environment variables that name a compiler, and commands to try without them.
_COMPILERS: dict[Language, tuple[str, list[str]]] = {
    "C": ("CC", ["cc", "gcc", "clang"]),
    "C++": ("CXX", ["c++", "g++", "clang++"]),
}


def find_compiler(language: Language = "C") -> list[str]:
    """The first of $CC (which may include options), cc, gcc and clang that is installed; $CXX and its kin for C++."""
    variable, usual = _COMPILERS[language]
    for command in (shlex.split(os.environ.get(variable, "")), *([name] for name in usual)):
        if command and shutil.which(command[0]):
            return command
    raise ExportError(
        f"there is no {language} compiler: install {' or '.join(usual[1:])}, or name one in the environment variable "
        f"{variable}."
    )


def shared_library(
    name: str, texts: dict[str, str], flags: tuple[str, ...], cache: Path | None = None, language: Language = "C"
) -> Path:
    """Compiles {file name: text} to a library, cached by the hash of the texts, the compiler and the flags.

    The first file is compiled; the others are what it includes.
    """
    compiler = find_compiler(language)
    key = hashlib.sha256("\0".join([*texts.values(), machine_macros(language), *flags]).encode()).hexdigest()
    folder = cache or cache_folder()
    files.private_folder(folder)
    stem = f"{name}-{key[:32]}"
    whole = (path for path in sorted(folder.glob(f"{stem}-*.so")) if path.name == _library_name(stem, path))
    return next(whole, None) or _make(texts, compiler, flags, folder, stem)


def cache_folder() -> Path:
    """The cache folder of compiled libraries."""
    return Path(platformdirs.user_cache_dir("nttzoo")) / "libraries"


def machine_macros(language: Language = "C") -> str:
    """The compiler's predefined macros: its version, and what "native" means on this machine."""
    return _macros(tuple(find_compiler(language)))


@cache
def _macros(compiler: tuple[str, ...]) -> str:
    command = [*compiler, "-march=native", "-dM", "-E", "-x", "c", os.devnull]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def _library_name(stem: str, library: Path) -> str:
    """A library's file name, with a hash of its content: loading a truncated one would crash the process."""
    content = files.read_bytes(library, limit=LIBRARY_LIMIT)
    return f"{stem}-{hashlib.sha256(content).hexdigest()[:32]}.so"


def _make(texts: dict[str, str], compiler: list[str], flags: tuple[str, ...], folder: Path, stem: str) -> Path:
    """Compiles texts to a library, whose file appears atomically."""
    try:
        with tempfile.TemporaryDirectory(dir=folder) as work:
            for file, text in texts.items():
                (Path(work) / file).write_text(text)
            built = Path(work) / "built.so"
            options = [*flags, "-shared", "-fPIC", "-pthread"]
            command: list[Any] = [*compiler, *options, Path(work) / next(iter(texts)), "-o", built, "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise ExportError(f"{' '.join(compiler)} failed: {done.stderr.strip()[-800:]}")
            library = folder / _library_name(stem, built)
            os.replace(built, library)
        for other in set(folder.glob(f"{stem}-*.so")) - {library}:
            other.unlink(missing_ok=True)  # damaged
    except OSError as error:
        raise ExportError(f"the compiled library cannot be kept in {folder}: {error}.") from error
    return library
