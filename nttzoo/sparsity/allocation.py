"""`allocate`: how many weights each group of a network's layers keeps, from a density and a scheme."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nttzoo.errors import DensityError, OptionError, ShapeError
from nttzoo.nn import LayerPath, masked_layers, matching
from nttzoo.sparsity.density import Density, check_densities
from nttzoo.sparsity.schemes import (
    Groups,
    Layer,
    Scheme,
    across_layers,
    each_alone,
    find_scheme,
    layerwise,
    scheme_name,
    survivors,
)
from nttzoo.sparsity.uses import positions_of


def describe(model: nnx.Module, inputs: tuple[int, ...] | jax.ShapeDtypeStruct | None = None) -> list[Layer]:
    """The prunable layers of a model, for schemes. `inputs`: the shape of one example, without the batch axis.

    Left out, it is the model's `input_shape`. Only schemes that look at positions need it.
    """

    @cache
    def counted() -> Mapping[LayerPath, int]:
        shape = getattr(model, "input_shape", None) if inputs is None else inputs
        if shape is None:
            raise ShapeError(
                f"{type(model).__name__} does not say its input shape, and this scheme counts multiply-adds: give the "
                "shape of one example, input_shape=(28, 28, 1) say."
            )
        if not isinstance(shape, jax.ShapeDtypeStruct):
            shape = jax.ShapeDtypeStruct((1, *shape), jnp.float32)
        return positions_of(model, shape)

    return [Layer(path, tuple(layer.kernel.shape), counted) for path, layer in masked_layers(model).items()]


def allocate(
    layers: Sequence[Layer],
    density: Density,
    scheme: str | Scheme = "layerwise",
    exclude: Sequence[str] = (),
    *,
    uniform: bool = False,
) -> Groups:
    """How many weights each group of layers keeps.

    Args:
      layers: the prunable layers (`describe`).
      density: fraction of weights kept; or one for each glob over layer paths, {"blocks.*": 0.02, "*": 0.1}: the
        first that matches a layer counts, and the scheme is applied to the layers of each glob by themselves.
      scheme: a name or a function (layers, density) -> groups.
      exclude: globs over layer paths; these layers stay dense, and density and scheme are about the others.
      uniform: the layers of a group do not compete; all keep the same fraction.

    Raises:
      DensityError: if a layer with a count of its own, or the whole network, would be left without weights.
      OptionError: if a glob matches nothing, if nothing is left to prune, or if a scheme's groups do not fit.
    """
    density, chosen = check_densities(density), find_scheme(scheme)
    dense = matching([layer.path for layer in layers], exclude)
    pruned = [layer for layer in layers if layer.path not in dense]
    if not pruned:
        raise OptionError(f"exclude={list(exclude)} matches every layer: nothing is left to prune.")
    groups = each_alone(kept := [x for x in layers if x.path in dense], [layer.size for layer in kept])
    for part, value in _parts(pruned, density):
        made = chosen(part, value)
        _check_groups(made, part, value, scheme)
        if uniform:
            made = _uniformly(made, value)
            _check_empty(made, value, layerwise if find_scheme(scheme) is across_layers else scheme)
        groups += made
    return groups


def _parts(layers: Sequence[Layer], density: Density) -> list[tuple[list[Layer], float]]:
    """The layers of each density."""
    if not isinstance(density, Mapping):
        return [(list(layers), density)]
    left, parts = list(layers), []
    for pattern, value in density.items():
        chosen = matching([layer.path for layer in layers], [pattern])
        part = [layer for layer in left if layer.path in chosen]
        left = [layer for layer in left if layer.path not in chosen]
        if part:
            parts.append((part, value))
    if left:
        names = ", ".join(layer.name for layer in left)
        raise OptionError(f"no density for: {names}. Add '*' for all that are left, or exclude them.")
    return parts


def _check_groups(groups: Groups, layers: Sequence[Layer], density: float, scheme: str | Scheme) -> None:
    """Raises if a scheme's groups are not those of the layers, or leave some of them empty."""
    name = scheme_name(scheme)
    if sorted(map(str, (path for group in groups for path in group.paths))) != sorted(str(x.path) for x in layers):
        raise OptionError(f"scheme {name!r} must put each layer into exactly one group.")
    for group in groups:
        if not isinstance(group.kept, int | np.integer) or not 0 <= group.kept <= group.size:
            where = ", ".join(layer.name for layer in group.layers)
            raise OptionError(f"scheme {name!r} keeps {group.kept!r} of {group.size} weights of {where}.")
    _check_empty(groups, density, scheme)


def _check_empty(groups: Groups, density: float, scheme: str | Scheme) -> None:
    empty = [group for group in groups if group.kept == 0]
    if not empty:
        return
    group = min(empty, key=lambda group: group.size)
    least = math.ceil(1e6 * 0.5000001 / group.size) / 1e6
    if len(group.layers) > 1:
        raise DensityError(f"density {density:g} of {group.size} weights keeps none. Choose at least {least:g}.")
    problem = f"density {density:g} would leave layer '{group.layers[0].name}' ({group.size} weights) empty"
    if find_scheme(scheme) is layerwise:
        raise DensityError(
            f"{problem}. Layerwise, this model needs a density of at least {least:g}; the scheme 'global' may go lower."
        )
    raise DensityError(f"{problem} under the scheme {scheme_name(scheme)!r}. Choose a higher density.")


def _uniformly(groups: Groups, density: float) -> Groups:
    """The same with a count for each layer: within a group, all keep the same fraction."""
    made: Groups = []
    for group in groups:
        # The density itself, where it is the group's: rounded twice, counts would be off by one.
        exact = group.kept == survivors(density, group.size)
        made += layerwise(group.layers, density if exact else group.kept / group.size) if group.layers[1:] else [group]
    return made


def densities(groups: Groups) -> dict[LayerPath, float]:
    """The fraction of weights that each layer may expect to keep: its group's."""
    return {layer.path: group.kept / group.size for group in groups for layer in group.layers}


def overall_density(groups: Groups, density: Density) -> float:
    """One number: the density itself, or the fraction that densities per layer come to, dense layers left out."""
    if not isinstance(density, Mapping):
        return density
    pruned = [group for group in groups if group.kept < group.size] or groups
    return sum(group.kept for group in pruned) / sum(group.size for group in pruned)
