"""Scores + density + scheme -> masks: the only top-k in the project; and how dense a model is."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from nttzoo import console
from nttzoo.errors import DensityError
from nttzoo.nn import Path, masked_layers, path_name
from nttzoo.registry import Registry

Scores = Mapping[Path, Float[Array, "..."]]
Masks = dict[Path, Bool[Array, "..."]]
Scheme = Callable[[Scores, float], Masks]

SCHEMES: Registry[Scheme] = Registry("scheme")


def keep_largest(scores: Float[Array, "..."], count: int | Array) -> Bool[Array, "..."]:
    """Keeps the `count` largest scores; ties go to the lower index (C order). `count` may be traced."""
    flat = scores.reshape(-1)
    # One sort of values is several times faster than an argsort; the ties at the threshold are then counted off.
    threshold = jnp.sort(flat)[jnp.clip(flat.size - count, 0, flat.size - 1)]
    above = flat > threshold
    tied = flat == threshold
    room = count - jnp.sum(above)
    return (above | (tied & (jnp.cumsum(tied) <= room))).reshape(scores.shape)


def survivors(density: float, size: int) -> int:
    """How many of `size` weights a density keeps: round(density * size)."""
    return round(density * size)


def check_density(density: float) -> float:
    """Returns the density as a float, or says what is wrong with it."""
    if isinstance(density, bool) or not isinstance(density, int | float | np.number) or not 0 < density <= 1:
        raise DensityError(
            f"density {density!r} is not in (0, 1]. density is the fraction of weights KEPT: 0.03 keeps 3 %."
        )
    return float(density)


@SCHEMES.register("layerwise")
def layerwise(scores: Scores, density: float) -> Masks:
    """Every layer keeps the same fraction of its weights: exactly round(density * size)."""
    density = check_density(density)
    path, size = min(((path, layer.size) for path, layer in scores.items()), key=lambda item: item[1])
    if survivors(density, size) == 0:
        smallest = math.ceil(1e6 * 0.5000001 / size) / 1e6
        raise DensityError(
            f"density {density:g} would leave layer '{path_name(path)}' ({size} weights) empty. "
            f"Layerwise, this model needs a density of at least {smallest:g}; the scheme 'global' may go lower."
        )
    return {path: keep_largest(layer, survivors(density, layer.size)) for path, layer in scores.items()}


@SCHEMES.register("global")
def across_layers(scores: Scores, density: float) -> Masks:
    """One threshold over all layers: exactly round(density * total size) weights survive, wherever they are."""
    density = check_density(density)
    flat = jnp.concatenate([layer.reshape(-1) for layer in scores.values()])
    if survivors(density, flat.size) == 0:
        raise DensityError(f"density {density:g} of {flat.size} weights keeps none. Choose a larger density.")
    kept = keep_largest(flat, survivors(density, flat.size))
    ends = np.cumsum([layer.size for layer in scores.values()])
    parts = jnp.split(kept, ends[:-1])
    return {path: part.reshape(layer.shape) for part, (path, layer) in zip(parts, scores.items(), strict=True)}


def make_masks(scores: Scores, density: float, scheme: str | Scheme = "layerwise") -> Masks:
    """Masks of the scores' shapes by a scheme's name, or by a function of one's own with a scheme's signature."""
    return (SCHEMES[scheme] if isinstance(scheme, str) else scheme)(scores, density)


def warn_of_empty_layers(masks: Masks) -> None:
    """Warns, by name, of layers in which no weight survived: nothing flows through them any more."""
    empty = [path_name(path) for path, mask in masks.items() if not bool(mask.any())]
    if empty:
        warnings.warn(f"no weight survived in: {', '.join(empty)}. The network's outputs are constant.", stacklevel=3)


@dataclass(frozen=True)
class LayerDensity:
    """How many weights of one layer survive."""

    name: str
    size: int
    kept: int

    @property
    def density(self) -> float:
        """Fraction of the weights kept."""
        return self.kept / self.size


@dataclass(frozen=True)
class DensityReport:
    """How many weights survive, per layer and in total; `print` shows a table."""

    layers: tuple[LayerDensity, ...]

    @property
    def total(self) -> LayerDensity:
        """All layers together."""
        return LayerDensity("total", sum(x.size for x in self.layers), sum(x.kept for x in self.layers))

    def __str__(self) -> str:
        rows = [(x.name, f"{x.size:,}", f"{x.kept:,}", f"{x.density:.2%}") for x in (*self.layers, self.total)]
        return console.table("", ("layer", "weights", "kept", "density"), rows, total=True)


def density_report(model: nnx.Module) -> DensityReport:
    """Counts the surviving weights of a model with masks."""
    layers = masked_layers(model)
    return DensityReport(
        tuple(LayerDensity(path_name(p), layer.mask.size, int(layer.mask[...].sum())) for p, layer in layers.items())
    )
