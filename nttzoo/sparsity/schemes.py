"""Where the weights go: schemes, which turn the layers of a network and a density into counts.

A scheme is a function (layers, density) -> groups. Each layer belongs to one group; the layers of a group compete for
its weights, so a group of one layer has a fixed count. `allocate` applies a scheme to the layers that are pruned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nttzoo.errors import DensityError, OptionError, ShapeError
from nttzoo.nn import Path, masked_layers, matching, path_name
from nttzoo.nn.taps import positions_of
from nttzoo.registry import Registry

# A fraction of weights kept, or one for each glob over layer paths: the first that matches a layer counts.
Density = float | Mapping[str, float]


@dataclass(frozen=True)
class Layer:
    """What a scheme knows of a layer: its path, and the shape of its kernel.

    `positions` is how many times one example uses each weight (of a convolution: once per output pixel), so that
    `size * positions` are the layer's multiply-adds. It is counted when it is first asked for.
    """

    path: Path
    shape: tuple[int, ...]
    counted: Callable[[], Mapping[Path, int]]

    @property
    def name(self) -> str:
        """The path as people write it: "layers.0"."""
        return path_name(self.path)

    @property
    def size(self) -> int:
        """How many weights the layer has."""
        return math.prod(self.shape)

    @property
    def positions(self) -> int:
        """How many times one example uses each weight."""
        return self.counted()[self.path]


class Group(NamedTuple):
    """Layers that compete for `kept` weights."""

    layers: tuple[Layer, ...]
    kept: int

    @property
    def size(self) -> int:
        """How many weights the layers have."""
        return sum(layer.size for layer in self.layers)

    @property
    def paths(self) -> list[Path]:
        """The layers' paths."""
        return [layer.path for layer in self.layers]


Groups = list[Group]
Scheme = Callable[[Sequence[Layer], float], Groups]
SCHEMES: Registry[Scheme] = Registry("scheme")


def survivors(density: float, size: int) -> int:
    """How many of `size` weights a density keeps: round(density * size)."""
    return round(density * size)


def each_alone(layers: Sequence[Layer], counts: Sequence[int]) -> Groups:
    """One group for each layer: the counts are fixed."""
    return [Group((layer,), count) for layer, count in zip(layers, counts, strict=True)]


@SCHEMES.register("layerwise")
def layerwise(layers: Sequence[Layer], density: float) -> Groups:
    """Every layer keeps the same fraction of its weights."""
    return each_alone(layers, [survivors(density, layer.size) for layer in layers])


@SCHEMES.register("global")
def across_layers(layers: Sequence[Layer], density: float) -> Groups:
    """One threshold over all layers: weights survive wherever they are."""
    return [Group(tuple(layers), survivors(density, sum(layer.size for layer in layers)))]


@SCHEMES.register("erk")
def erk(layers: Sequence[Layer], density: float) -> Groups:
    """Erdos-Renyi-Kernel: a layer's count is proportional to the sum of its kernel's dimensions.

    So every unit keeps about the same number of connections, and small layers are denser. A layer that would have more
    than all of its weights stays dense, and the others share the rest. The total is round(density * size).
    Reference: Evci et al., Rigging the Lottery, 2020 (https://arxiv.org/abs/1911.11134).
    """
    wanted = [sum(layer.shape) for layer in layers]
    sizes = [layer.size for layer in layers]
    total = survivors(density, sum(sizes))
    _check_total(total, layers, density)
    return each_alone(layers, _rounded(_proportional(wanted, sizes, total), sizes, total))


@SCHEMES.register("budget")
def budget(layers: Sequence[Layer], density: float) -> Groups:
    """As many weights and multiply-adds as `layerwise` at the same density, but placed as `erk` would.

    Of all allocations with layerwise's number of weights and of multiply-adds it is the one with the smallest relative
    entropy sum(k * log(k / e)) from erk's counts e: k = e * exp(a + b * positions), at least 1 and at most the layer's
    size, with a and b from the two constraints. Counts are rounded so that the number of weights is exact and the
    multiply-adds are not exceeded. Where each weight is used once per example (multilayer perceptrons) it is erk.
    """
    sizes, positions = [layer.size for layer in layers], [layer.positions for layer in layers]
    even = [survivors(density, size) for size in sizes]
    weights, multiply_adds = sum(even), sum(k * p for k, p in zip(even, positions, strict=True))
    scale = max(*positions, 1)

    def counts(tilt: float) -> list[float]:
        # The tilt is at most 50: no share under- or overflows.
        wanted = [sum(x.shape) * math.exp(tilt * p / scale) for x, p in zip(layers, positions, strict=True)]
        return _proportional(wanted, sizes, weights)

    def cost(kept: Sequence[float]) -> float:
        return sum(k * p for k, p in zip(kept, positions, strict=True))

    _check_total(weights, layers, density)
    if len(set(positions)) == 1:
        return each_alone(layers, _rounded(counts(0), sizes, weights))
    # The more negative the tilt, the fewer multiply-adds.
    tilt = _bisect(lambda tilt: cost(counts(tilt)) <= multiply_adds, -50.0, 50.0)
    kept = [max(math.floor(k), 1) for k in counts(tilt)]

    # Rounding down leaves weights over: they go where multiply-adds allow it, and the rest where they are cheapest.
    cheapest = min(range(len(layers)), key=lambda i: (positions[i], kept[i] - sizes[i]))
    spare = multiply_adds - cost(kept) - (weights - sum(kept)) * positions[cheapest]
    for i in sorted(range(len(layers)), key=lambda i: -positions[i]):
        extra = positions[i] - positions[cheapest]
        if i != cheapest and 0 < extra <= spare and kept[i] < sizes[i]:
            kept[i], spare = kept[i] + 1, spare - extra
    left = weights - sum(kept)
    for i in sorted(range(len(layers)), key=lambda i: (positions[i], kept[i] - sizes[i])):
        change = min(left, sizes[i] - kept[i]) if left > 0 else max(left, 1 - kept[i])
        kept[i], left = kept[i] + change, left - change
    if left or cost(kept) > multiply_adds:
        raise DensityError(
            f"density {density:g} is too low for the scheme 'budget': with at least one weight in every layer, "
            f"{weights} weights need more than layerwise's {multiply_adds:,} multiply-adds. Choose a higher density."
        )
    return each_alone(layers, kept)


def _check_total(total: int, layers: Sequence[Layer], density: float) -> None:
    if total < len(layers):
        raise DensityError(
            f"density {density:g} keeps {total} weights, fewer than one in each of {len(layers)} layers."
        )


def _proportional(wanted: Sequence[float], sizes: Sequence[int], total: float) -> list[float]:
    """Shares of `total` proportional to `wanted`, but none below 1 or above its size."""

    def shares(factor: float) -> list[float]:
        return [min(max(factor * w, 1.0), size) for w, size in zip(wanted, sizes, strict=True)]

    top = max(size / w for w, size in zip(wanted, sizes, strict=True))
    return shares(_bisect(lambda factor: sum(shares(factor)) <= total, 0.0, top))


def _bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The largest value in [low, high] up to which a condition holds."""
    if holds(high):
        return high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _rounded(shares: Sequence[float], sizes: Sequence[int], total: int) -> list[int]:
    """Whole numbers with the given total: the largest remainders are rounded up, ties to the earlier layer."""
    kept = [math.floor(share) for share in shares]
    order = sorted(range(len(kept)), key=lambda i: (kept[i] == sizes[i], kept[i] - shares[i]))
    for i in order[: max(total - sum(kept), 0)]:
        kept[i] += 1
    return kept


def find_scheme(scheme: str | Scheme) -> Scheme:
    """A scheme by its name; a function of one's own is returned as it is."""
    return SCHEMES[scheme] if isinstance(scheme, str) else scheme


def scheme_name(scheme: str | Scheme) -> str:
    """For folders and reports: the name of a scheme, or of the function that is one."""
    return scheme if isinstance(scheme, str) else getattr(scheme, "__name__", type(scheme).__name__)


def check_density(density: Any) -> float:
    """Returns the density as a float, or says what is wrong with it."""
    if isinstance(density, bool) or not isinstance(density, int | float | np.number) or not 0 < density <= 1:
        raise DensityError(
            f"density {density!r} is not in (0, 1]. density is the fraction of weights KEPT: 0.03 keeps 3 %."
        )
    return float(density)


def check_densities(density: Density) -> Density:
    """The same for a density, or one for each glob over layer paths."""
    if not isinstance(density, Mapping):
        return check_density(density)
    if not density:
        raise DensityError("the densities per layer are empty: give for example {'blocks.*': 0.02, '*': 0.1}.")
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


def glob_name(pattern: str) -> str:
    """A glob in characters that every file system takes."""
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in pattern.replace("*", "all"))


def describe(model: nnx.Module, inputs: tuple[int, ...] | jax.ShapeDtypeStruct | None = None) -> list[Layer]:
    """The prunable layers of a model, for schemes. `inputs`: the shape of one example, without the batch axis.

    Left out, it is the model's `input_shape`. Only schemes that look at positions need it.
    """

    @cache
    def counted() -> Mapping[Path, int]:
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
    even: bool = False,
) -> Groups:
    """How many weights each group of layers keeps.

    Args:
      layers: the prunable layers (`describe`).
      density: fraction of weights kept; or one for each glob over layer paths, {"blocks.*": 0.02, "*": 0.1}: the
        first that matches a layer counts, and the scheme is applied to the layers of each glob by themselves.
      scheme: a name or a function (layers, density) -> groups.
      exclude: globs over layer paths; these layers stay dense, and density and scheme are about the others.
      even: the layers of a group do not compete; all keep the same fraction.

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
        if even:
            made = _evenly(made, value)
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
    """Says so if a scheme's groups are not those of the layers, or leave some of them empty."""
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
    told = f"density {density:g} would leave layer '{group.layers[0].name}' ({group.size} weights) empty"
    if find_scheme(scheme) is layerwise:
        raise DensityError(
            f"{told}. Layerwise, this model needs a density of at least {least:g}; the scheme 'global' may go lower."
        )
    raise DensityError(f"{told} under the scheme {scheme_name(scheme)!r}. Choose a higher density.")


def _evenly(groups: Groups, density: float) -> Groups:
    """The same with a count for each layer: within a group, all keep the same fraction."""
    made: Groups = []
    for group in groups:
        # The density itself, where it is the group's: rounded twice, counts would be off by one.
        asked = group.kept == survivors(density, group.size)
        made += layerwise(group.layers, density if asked else group.kept / group.size) if group.layers[1:] else [group]
    return made


def densities(groups: Groups) -> dict[Path, float]:
    """The fraction of weights that each layer may expect to keep: its group's."""
    return {layer.path: group.kept / group.size for group in groups for layer in group.layers}


def overall_density(groups: Groups, density: Density) -> float:
    """One number: the density itself, or the fraction that densities per layer come to, dense layers left out."""
    if not isinstance(density, Mapping):
        return density
    pruned = [group for group in groups if group.kept < group.size] or groups
    return sum(group.kept for group in pruned) / sum(group.size for group in pruned)
