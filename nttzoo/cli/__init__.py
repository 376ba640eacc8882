"""The `nttzoo` command: argument parsing and one call each."""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from nttzoo import __version__
from nttzoo.cli import own
from nttzoo.cli.commands import COMMANDS
from nttzoo.cli.parsing import parse
from nttzoo.errors import Interrupted, NttzooError, PeerError

_ALIASES = {"visualise": "visualize"}
_USAGE = "usage: nttzoo [-h] [--version] COMMAND ..."


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; wrong arguments are explained on stderr and exit with 2."""
    first, *others = [*(sys.argv[1:] if arguments is None else arguments)] or [""]
    name = _ALIASES.get(first, first)
    if name in COMMANDS:
        execute(COMMANDS[name], f"nttzoo {name}", others)
    elif first == "--version":
        print(__version__)
    elif first in ("-h", "--help"):
        print(_help())
    else:
        near = difflib.get_close_matches(first, COMMANDS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else " `nttzoo --help` lists the commands."
        print(f"{_USAGE}\nnttzoo: {f'no command {first!r}' if first else 'name a command'}.{hint}", file=sys.stderr)
        sys.exit(2)


def execute(command: type[Any], prog: str, arguments: Sequence[str] | None = None) -> None:
    """Parses the arguments of a command and runs it; errors are printed as one line on stderr and set the exit code."""
    options = parse(command, prog, sys.argv[1:] if arguments is None else arguments)
    try:
        with warnings.catch_warnings():  # the caller's way of showing warnings is restored
            warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
            own.entered(options).run()
        sys.stdout.flush()
    except Interrupted as error:
        print(f"nttzoo: {error}", file=sys.stderr)
        sys.exit(128 + error.signal)
    except PeerError as error:
        print(f"nttzoo: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)  # JAX would first wait for the process that is gone
    except NttzooError as error:
        print(f"nttzoo: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        print(f"nttzoo: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("nttzoo: interrupted", file=sys.stderr)
        sys.exit(130)


def _help() -> str:
    lines = [f"  {name:<12}{(kind.__doc__ or '').splitlines()[0]}" for name, kind in COMMANDS.items()]
    about = "Sparse networks from Neural Tangent Transfer: search, train, load and deploy."
    return "\n".join([_USAGE, "", about, "", "commands:", *lines, "", "nttzoo COMMAND --help shows its options."])
