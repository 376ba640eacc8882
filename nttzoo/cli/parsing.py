"""Dataclasses as commands: argparse's options come from their fields, with type, default and help."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from nttzoo.settings import Argument, Density, Help

Command = TypeVar("Command")

# What a field of several values is called where each value is typed after the option.
_RENAMED = {"densities": "density", "schemes": "scheme", "exclude": "dense-layers"}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Names the closest match of an unknown option. Argparse would list all options before the message."""
        known = self._option_string_actions
        wrong = [word for word in re.findall(r"--[\w-]+", message) if word not in known]
        near = [match for word in wrong for match in difflib.get_close_matches(word, known, n=1)]
        hint = f"Did you mean {' or '.join(near)}?" if near else f"`{self.prog} --help` lists the options."
        self.exit(2, f"usage: {self.prog} [-h] ...\n{self.prog}: {message}. {hint}\n")


def parse(command: type[Command], prog: str, arguments: Sequence[str]) -> Command:
    """The command that the arguments describe; a mistake is explained on stderr and exits with 2."""
    parser = _Parser(prog, description=command.__doc__)
    _add_options(parser, command)
    return _made(command, vars(parser.parse_args(arguments)))


def optional(settings: type) -> Any:
    """A dataclass with the same fields, all of them None unless they are given."""
    hints = get_type_hints(settings, include_extras=True)
    values = [(x.name, *get_args(hints[x.name])) for x in fields(settings)]
    options = [(name, Annotated[kind | None, about], field(default=None)) for name, kind, about in values]
    return make_dataclass(settings.__name__, options, frozen=True)


def density(text: str) -> Density:
    """A density as on the command line: 0.03, or one for each glob over layer paths, 'conv*=0.02,*=0.1'."""
    if "=" not in text:
        return float(text)
    pairs = (part.rsplit("=", 1) for part in text.split(","))
    return {pattern.strip(): float(value) for pattern, value in pairs}


def _add_options(parser: Any, command: type) -> None:
    hints = get_type_hints(command, include_extras=True)
    for entry in fields(command):
        if is_dataclass(group := hints[entry.name]):
            title = entry.name.replace("_", " ")
            _add_options(parser.add_argument_group(title, group.__doc__), group)  # type: ignore[arg-type]
        else:
            names, how = _option(entry, *get_args(hints[entry.name]))
            parser.add_argument(*names, **how)


def _option(entry: Field[Any], kind: Any, about: Help) -> tuple[list[str], dict[str, Any]]:
    """The arguments of `add_argument`."""
    required = entry.default is MISSING and entry.default_factory is MISSING
    default = None if required else entry.default_factory() if callable(entry.default_factory) else entry.default
    if get_origin(kind) in (Union, UnionType):
        kinds = [part for part in get_args(kind) if part is not type(None)]
        kind = kinds[0] if len(kinds) == 1 else Density
    option = _RENAMED.get(entry.name, entry.name).replace("_", "-")
    how: dict[str, Any] = {"help": _with_default(about.text, default), "default": default, "metavar": about.metavar}
    if entry.name in _RENAMED and not about.metavar:
        how["metavar"] = option.upper()
    several = get_origin(kind) is tuple
    if kind is bool:
        how.pop("metavar")
        action = "store_false" if default else "store_true"
        return [f"--no-{option}" if default else f"--{option}"], {**how, "action": action, "dest": entry.name}
    value = get_args(kind)[0] if several else kind
    how["type"] = density if value == Density else value
    if get_origin(value) is Literal:
        how |= {"type": str, "choices": get_args(value)}
    if isinstance(about, Argument):
        return [entry.name], how | {"nargs": ("+" if required else "*") if several else None if required else "?"}
    return [f"--{option}"], how | {"dest": entry.name, "required": required, "nargs": "+" if several else None}


def _with_default(text: str, default: Any) -> str:
    """The help, escaped for argparse, and the default, if that says something."""
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    silent = shown is None or shown == "" or isinstance(shown, bool)
    return text.replace("%", "%%") + ("" if silent else f" (default: {shown})")


def _made(command: type[Command], given: dict[str, Any]) -> Command:
    hints = get_type_hints(command)
    values = {
        x.name: _made(hints[x.name], given) if is_dataclass(hints[x.name]) else given[x.name]
        for x in fields(command)  # type: ignore[arg-type]
    }
    return command(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})
