"""Code that the user names, as "package.module:name" or "file.py:name". Never call this with the content of a file."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from nttzoo.errors import OptionError


@dataclass(frozen=True)
class Named:
    """A function or class, how it was named, and a hash of the file that defines it (if that can be read)."""

    reference: str
    value: Callable[..., Any]
    file: Path | None
    sha256: str | None

    @property
    def name(self) -> str:
        """For files and folders: the part behind the colon."""
        return plain_name(self.reference.rpartition(":")[2])

    def told(self, error: BaseException) -> str:
        """What its code raised, and on which line: "ValueError: too small (net.py, line 12)"."""
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == self.file]
        where = f" ({self.file.name}, line {lines[-1]})" if self.file and lines else ""
        return f"{type(error).__name__}: {error}{where}"


def is_reference(text: str) -> bool:
    """Whether a text names code."""
    return ":" in text


def plain_name(text: str) -> str:
    """A text as a name of a network or data set: letters, digits, dots and underscores."""
    return re.sub(r"[^A-Za-z0-9_.]+", "_", text).strip("._") or "own"


def resolve(reference: str, option: str) -> Named:
    """Imports what `reference` names.

    Args:
      reference: "package.module:name", found as `python -m` would find it, or "file.py:name".
      option: the command-line option that it was given to, for messages.

    Raises:
      OptionError: if the module cannot be imported, or has no such function or class.
    """
    place, _, name = reference.rpartition(":")
    if not place or not name.isidentifier():
        raise OptionError(f"{option} {reference}: write package.module:name or file.py:name.")
    module = _import_file(Path(place), option) if place.endswith(".py") else _import_module(place, option)
    value = getattr(module, name, None)
    if value is None:
        known = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"{option} {reference}: {place} has no {name!r}.{hint} It has: {', '.join(known) or 'none'}.")
    if not callable(value):
        raise OptionError(f"{option} {reference}: {name} is {type(value).__name__}; a function or class is needed.")
    return Named(reference, value, *_source(value, module))


def _import_file(path: Path, option: str) -> ModuleType:
    if not path.is_file():
        raise OptionError(f"{option}: there is no file {path}.")
    path = path.resolve()
    # Under a name of its own, so that a file called json.py hides nothing.
    spec = importlib.util.spec_from_file_location(f"_nttzoo_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _find_in(path.parent)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script ends itself when it is done
        del sys.modules[spec.name]
        raise OptionError(f"{option}: {path.name} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _import_module(name: str, option: str) -> ModuleType:
    _find_in(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        said = f"{option}: module {name!r} cannot be imported: {type(error).__name__}: {error}."
        raise OptionError(f"{said} A file is named with its ending: net.py:name.") from error


def _find_in(folder: Path) -> None:
    """Lets imports find what is in a folder, as Python does with the folder of a script."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _source(value: Any, module: ModuleType) -> tuple[Path | None, str | None]:
    """The file that defines a function or class, and its hash, as far as they are known."""
    try:
        file = inspect.getsourcefile(value)
    except TypeError:
        file = getattr(module, "__file__", None)
    try:
        return (Path(file), hashlib.sha256(Path(file).read_bytes()).hexdigest()) if file else (None, None)
    except OSError:
        return None, None
