"""Reading a JSON file of a given schema."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from msgspec import Struct

from nttzoo._util import files
from nttzoo.errors import FileError


def read(path: str | os.PathLike[str], kind: type[Struct], *, what: str = "") -> Any:
    """The content of a JSON file, as dictionaries and lists, if it has the fields and types of `kind`.

    Args:
      path: a regular file of at most `files.TEXT_LIMIT` bytes.
      kind: one of the schemas above.
      what: what the file should be, for the message.

    Raises:
      FileError: with the file's name and the field that is wrong.
    """
    return validate(path, files.read_json(path), kind, what=what)


def validate(path: str | os.PathLike[str], content: Any, kind: type[Struct], *, what: str = "") -> Any:
    """The content, if it has the fields and types of `kind`."""
    try:
        msgspec.convert(content, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        reason = str(error).replace("Object missing required field ", "it does not tell ").replace("`", "'")
        raise FileError(path, f"is not {what or 'what it should be'}: {reason}") from error
    return content
