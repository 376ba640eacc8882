"""Multiply-adds per layer, dense and sparse: what a sparse network could save.

Counted are the multiply-adds of conv and linear layers; biases, norms and activations are not.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool

from nttzoo._util import console
from nttzoo.errors import ShapeError
from nttzoo.nn import Path, is_masked, masked_layers, merge_params, path_name, split_params
from nttzoo.nn.taps import call_shapes, positions_of, record

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
        columns = ("multiply-adds", "dense", "sparse", "not dead", "speed-up", "without dead")
        return console.table("", columns, rows, total=True)


def _ratio(dense: int, sparse: int) -> float:
    return dense / sparse if sparse else math.inf


def _times(dense: int, sparse: int) -> str:
    return f"{_ratio(dense, sparse):.1f}x" if sparse else "-"


def speedup(model: nnx.Module, input_shape: tuple[int, ...] | None = None) -> Speedup:
    """Counts the multiply-adds of one image through a model with masks.

    `input_shape` is the shape of one image without the batch axis; nttzoo's own architectures know theirs.
    """
    shape = input_shape or getattr(model, "input_shape", None)
    if shape is None:
        raise ShapeError(f"{type(model).__name__} does not say its input shape: give input_shape=(28, 28, 1), say.")
    layers = masked_layers(model)
    positions = positions_of(model, jax.ShapeDtypeStruct((1, *shape), jnp.float32))
    frozen = nnx.clone(model)
    frozen.eval()
    alive = _alive_weights(frozen, tuple(shape))
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


def _alive_weights(model: nnx.Module, shape: tuple[int, ...]) -> dict[Path, Bool[np.ndarray, "..."]]:
    """Which surviving weights lie on a path from the input to an output.

    The model is probed with positive surviving weights, no biases and positive images, where nothing can cancel: a
    derivative is zero only where there is no path. (Through linear, conv, pooling and monotone activations this is
    exact; through norms and attention it is a matter of chance, hence several random probes.)
    """
    probe = nnx.clone(model)
    rng = np.random.default_rng(0)
    for layer in masked_layers(probe).values():
        # Scaled to keep activations near one, so that no path under- or overflows.
        share = max(int(layer.mask[...].sum()) / math.prod(layer.output_units()), 1)
        layer.kernel[...] = jnp.asarray(rng.uniform(0.5, 1.5, layer.kernel.shape) / share, layer.kernel.dtype)
        if layer.bias is not None:
            layer.bias[...] = jnp.zeros_like(layer.bias[...])
    images = jnp.asarray(rng.uniform(0.5, 1.5, (PROBES, *shape)), jnp.float32)
    graph, params, rest = split_params(probe)
    paths = [call.path for call in call_shapes(probe, is_masked, images)]

    reached: dict[Path, Array] = {}
    for path, weights in zip(paths, _weights_on_paths(graph, params, rest, images), strict=True):
        reached[path] = weights | reached[path] if path in reached else weights
    return {
        path: np.asarray(layer.mask[...] & reached.get(path, False)) for path, layer in masked_layers(model).items()
    }


@partial(jax.jit, static_argnums=0)
def _weights_on_paths(graph: Any, params: Any, rest: Any, images: Array) -> list[Bool[Array, "..."]]:
    """For each call of a layer: which of its weights a derivative from the images reaches and one of the outputs."""
    probe = merge_params(graph, params, rest)

    def inputs_of_calls(x: Array) -> list[Array]:
        _, calls = record(probe, is_masked, lambda m: m(x))
        return [call.inputs for call in calls]

    def summed_output(perturbations: list[Array]) -> Array:
        outputs, _ = record(probe, is_masked, lambda m: m(images), lambda i, call: call.outputs + perturbations[i])
        return outputs.sum()

    _, calls = record(probe, is_masked, lambda m: m(images))
    _, from_input = jax.jvp(inputs_of_calls, (images,), (images,))
    to_output = jax.grad(summed_output)([jnp.zeros_like(call.outputs) for call in calls])
    met = []
    for call, a, b in zip(calls, from_input, to_output, strict=True):
        # The layer's own weight gradient, with indicators in place of values: nonzero where a live input meets a live
        # output. It knows about strides, groups and shared positions, whatever the layer is.
        moving, wanted = (a != 0).astype(jnp.float32), (b != 0).astype(b.dtype)
        layer, weights, others = split_params(nnx.clone(call.layer))
        _, pull = jax.vjp(lambda p, layer=layer, rest=others, x=moving: merge_params(layer, p, rest)(x), weights)
        met.append(pull(wanted)[0]["kernel"][...] > 0)
    return met
