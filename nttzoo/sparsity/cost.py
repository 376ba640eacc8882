"""Multiply-adds per layer, dense and sparse: what a sparse network could save.

Counted are the multiply-adds of conv and linear layers; biases, norms and activations are not.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nttzoo._util import console
from nttzoo._util.checks import check_model, check_shape
from nttzoo.errors import ShapeError
from nttzoo.nn import masked_layers, path_name
from nttzoo.sparsity.uses import positions_of, weights_on_paths

PROBES = 8


@dataclass(frozen=True)
class LayerCost:
    """Multiply-adds per image of one layer: all weights, the surviving ones, and those that can matter."""

    name: str
    dense: int
    sparse: int
    alive: int


@dataclass(frozen=True)
class Speedup:
    """Multiply-adds per image and what sparsity saves of them; `print` shows a table.

    `theoretical` is dense / sparse, the paper's figure. `without_dead` also leaves out the weights that no longer
    matter: those that no path leads to from the input, or from which no path leads to an output.
    """

    layers: tuple[LayerCost, ...]

    @property
    def total(self) -> LayerCost:
        """All layers together."""
        sums = (sum(getattr(layer, kind) for layer in self.layers) for kind in ("dense", "sparse", "alive"))
        return LayerCost("total", *sums)

    @property
    def theoretical(self) -> float:
        """Dense over sparse multiply-adds."""
        return _ratio(self.total.dense, self.total.sparse)

    @property
    def without_dead(self) -> float:
        """Dense multiply-adds over those of the weights that can matter."""
        return _ratio(self.total.dense, self.total.alive)

    def to_dict(self) -> dict[str, Any]:
        """For JSON; an infinite ratio (no multiply-adds left) is None."""
        ratios = {"theoretical": self.theoretical, "without_dead": self.without_dead}
        return {
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "total": dataclasses.asdict(self.total),
            **{name: value if math.isfinite(value) else None for name, value in ratios.items()},
        }

    def __str__(self) -> str:
        rows = [
            (
                x.name,
                f"{x.dense:,}",
                f"{x.sparse:,}",
                f"{x.alive:,}",
                _times(x.dense, x.sparse),
                _times(x.dense, x.alive),
            )
            for x in (*self.layers, self.total)
        ]
        columns = ("multiply-adds", "dense", "sparse", "not dead", "speedup", "without dead")
        return console.table("", columns, rows, total=True)


def _ratio(dense: int, sparse: int) -> float:
    return dense / sparse if sparse else math.inf


def _times(dense: int, sparse: int) -> str:
    return f"{_ratio(dense, sparse):.1f}x" if sparse else "-"


def speedup(model: nnx.Module, input_shape: tuple[int, ...] | None = None) -> Speedup:
    """Counts the multiply-adds of one image through a model with masks.

    A layer counts once per position, per call, and per step of a loop that it is called in (`nnx.RNN`, `nnx.scan`).

    Args:
      model: any NNX module with masked layers.
      input_shape: the shape of one image without the batch axis; nttzoo's own architectures know theirs.

    Returns:
      The counts per layer and in total.

    Raises:
      ModelError: if a layer cannot be counted, as its kernel takes part in something else than products.
      ShapeError: if the model does not take such an image, or does not say its input shape.

    Example:
      >>> print(nttzoo.speedup(nttzoo.load("lenet5-mnist-3pct-global")))
    """
    check_model("model", model)
    shape = getattr(model, "input_shape", None) if input_shape is None else input_shape
    if shape is None:
        raise ShapeError(f"{type(model).__name__} does not say its input shape: give input_shape=(28, 28, 1), say.")
    shape = check_shape("input_shape", shape)
    layers = masked_layers(model)
    positions = positions_of(model, jax.ShapeDtypeStruct((1, *shape), jnp.float32))
    alive = weights_on_paths(model, tuple(shape))
    return Speedup(
        tuple(
            LayerCost(
                path_name(path),
                layer.kernel.size * positions[path],
                int(layer.mask[...].sum()) * positions[path],
                int(alive[path].sum()) * positions[path],
            )
            for path, layer in layers.items()
        )
    )
