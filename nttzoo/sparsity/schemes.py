"""Schemes: where the weights go. A scheme is a function (layers, density) -> groups.

Each layer belongs to one group; the layers of a group compete for its weights, so a group of one layer has a fixed
count. `nttzoo.sparsity.allocation` applies a scheme to the layers that are pruned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nttzoo.errors import DensityError, UnknownName
from nttzoo.nn import LayerPath, path_name
from nttzoo.registry import Registry


@dataclass(frozen=True)
class Layer:
    """What a scheme sees of a layer: its path and the shape of its kernel.

    `positions` is how many times one example uses each weight (of a convolution: once per output pixel), so that
    `size * positions` are the layer's multiply-adds. It is counted on first use.
    """

    path: LayerPath
    shape: tuple[int, ...]
    counted: Callable[[], Mapping[LayerPath, int]]

    @property
    def name(self) -> str:
        """The path as text: "layers.0"."""
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
    def paths(self) -> list[LayerPath]:
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
    layerwise_counts = [survivors(density, size) for size in sizes]
    weights, multiply_adds = sum(layerwise_counts), sum(k * p for k, p in zip(layerwise_counts, positions, strict=True))
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
    """A scheme by its name; a function is returned unchanged."""
    if isinstance(scheme, str):
        return SCHEMES[scheme]
    if not callable(scheme):
        raise UnknownName("scheme", scheme, SCHEMES)
    return scheme


def scheme_name(scheme: str | Scheme) -> str:
    """For folders and reports: the name of a scheme, or of the function that is one."""
    return scheme if isinstance(scheme, str) else getattr(scheme, "__name__", type(scheme).__name__)
