"""Densities: the fraction of weights kept, for a whole network or by globs over its layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from nttzoo.errors import DensityError
from nttzoo.settings import Density

__all__ = [
    "Density",
    "check_densities",
    "check_density",
    "dense_name",
    "density_name",
    "density_text",
    "glob_name",
    "on_the_way",
]


def check_density(density: Any, name: str = "density") -> float:
    """A density as a float."""
    if isinstance(density, bool) or not isinstance(density, int | float | np.number) or not 0 < density <= 1:
        raise DensityError(
            f"{name} {density!r} is not in (0, 1]. density is the fraction of weights KEPT: 0.03 keeps 3 %."
        )
    return float(density)


def check_densities(density: Density) -> Density:
    """The same for a density, or one for each glob over layer paths."""
    if not isinstance(density, Mapping):
        return check_density(density)
    if not density:
        raise DensityError("density {} is empty: give a number, or one per glob, such as {'blocks.*': 0.02, '*': 0.1}.")
    return {str(pattern): check_density(value) for pattern, value in density.items()}


def on_the_way(density: Density, progress: float) -> Density:
    """From 1 to the density, or densities, by the same factor at each step: density ** progress."""
    if progress == 1:
        return density
    if isinstance(density, Mapping):
        return {pattern: check_density(value) ** progress for pattern, value in density.items()}
    return check_density(density) ** progress


def density_name(density: Density) -> str:
    """For folders and names, in percent: "3", or "blocks.all=2+all=10" for {"blocks.*": 0.02, "*": 0.1}."""
    if isinstance(density, Mapping):
        return "+".join(f"{glob_name(pattern)}={100 * value:.6g}" for pattern, value in density.items())
    return f"{100 * density:.6g}"


def density_text(density: Density) -> str:
    """A density as on the command line: "0.03", or "blocks.*=0.02,*=0.1"."""
    if isinstance(density, Mapping):
        return ",".join(f"{pattern}={value:.6g}" for pattern, value in density.items())
    return f"{density:.6g}"


def dense_name(exclude: Iterable[str]) -> str:
    """The part of a name that tells which layers stay dense: "" or "-dense.head"."""
    return "".join(f"-dense.{glob_name(pattern)}" for pattern in exclude)


def glob_name(pattern: str) -> str:
    """A glob in characters that every file system takes."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in pattern.replace("*", "all"))
