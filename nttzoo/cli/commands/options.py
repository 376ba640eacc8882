"""Options that several commands share."""

from __future__ import annotations

import argparse
from typing import Any

from nttzoo.errors import OptionError


def recipe_values(options: argparse.Namespace) -> dict[str, Any]:
    """The values of a recipe that options change."""
    from dataclasses import fields

    from nttzoo.search.recipes import Recipe

    every = {field.name: getattr(options, field.name, None) for field in fields(Recipe) if field.name != "name"}
    return {name: value for name, value in every.items() if value is not None}


def density_of(options: argparse.Namespace) -> float | dict[str, float]:
    """The density that `--prune` is to leave."""
    if options.prune == "dense":
        if options.density not in (None, 1):
            raise OptionError(f"--density {options.density} needs a method: --prune random, magnitude, snip ...")
        return 1.0
    return 0.03 if options.density is None else options.density
