"""What a search did, named after the values of its recipe: the meaning of a recipe's name can change over time."""

from __future__ import annotations

import dataclasses
from typing import Any

from nttzoo.search import recipes
from nttzoo.settings import RecipeSettings

# What distinguishes one method from another; the other values of a recipe are its hyperparameters.
FIELDS = (
    *("tangents", "start_method", "mask_rule", "mask_momentum", "output_loss", "normalize_kernels", "active_from"),
    "start_density",
)
DEFAULTS = {field.name: field.default for field in dataclasses.fields(RecipeSettings) if field.name in FIELDS}


def method(recipe: dict[str, Any]) -> str:
    """The most specific named recipe that agrees with these values, and what else is unlike the paper's.

    Values that a recipe lacks, since it is older than they are, are the defaults.

    >>> method({"name": "ntt+", "start_density": 0.05, "mask_rule": "connected"})
    'gradual, mask_rule=connected'
    """
    values = {key: recipe.get(key, default) for key, default in DEFAULTS.items()}
    fitting = [name for name, own in recipes.VARIANTS.items() if all(values[key] == own[key] for key in own)]
    name = max(fitting, key=lambda name: len(recipes.VARIANTS[name]))
    usual = DEFAULTS | recipes.VARIANTS[name]
    return ", ".join([name, *(f"{key}={values[key]}" for key in DEFAULTS if values[key] != usual[key])])


def compared(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """The methods that an entry was compared with; its own row has the name that `method` gives."""
    own = metrics["recipe"]["name"]
    return [
        {**row, "method": method(metrics["recipe"])} if row["method"] == own else row for row in metrics["compared"]
    ]


def mean(row: dict[str, Any]) -> float:
    """The mean test accuracy of a method over its seeds."""
    return sum(row["test_accuracy"]) / len(row["test_accuracy"])
