"""The `nttzoo` command: argument parsing and one call each."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Sequence

from nttzoo.cli import own
from nttzoo.cli.parser import make_parser
from nttzoo.errors import Interrupted, NttzooError, PeerError


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; exits with 2 and one line on stderr if something is wrong with the arguments."""
    execute(make_parser(), arguments)


def execute(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> None:
    """Parses the arguments and calls what they name; an error becomes one line on stderr and an exit code."""
    parsed = parser.parse_args(arguments)
    try:
        with warnings.catch_warnings():  # the caller's way of showing warnings is restored
            warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
            own.enter(parsed)
            parsed.run(parsed)
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
