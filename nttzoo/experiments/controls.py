"""Controls: is it the mask, the initialization, or neither? A sparse network with one of them replaced.

If a network does as well with its weights moved to random places, where they were did not matter; if it does as well
with new weights, their values did not. Reference: Frankle et al., Pruning Neural Networks at Initialization: Why Are
We Missing the Mark?, 2021 (https://arxiv.org/abs/2009.08576).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from nttzoo._util.rngs import RngsLike, as_key
from nttzoo.nn import masked_layers
from nttzoo.registry import Registry
from nttzoo.sparsity import masks
from nttzoo.sparsity.kernels import he_kernels

M = TypeVar("M", bound=nnx.Module)
# (sparse network, the dense one it was made from, key) -> None; changes the sparse network
Control = Callable[[Any, Any, Array], None]
CONTROLS: Registry[Control] = Registry("control")


def apply(model: M, control: str, *, dense: nnx.Module, rngs: RngsLike) -> M:
    """Replaces a part of a sparse network, in place, and returns it; each layer keeps as many weights as it had.

    `dense` is the network that was pruned, with its own weights.
    """
    CONTROLS[control](model, dense, as_key(rngs))
    return model


@CONTROLS.register("shuffled")
def shuffled(model: Any, dense: Any, key: Array) -> None:
    """Within each layer, the surviving weights move to random places."""
    layers = masked_layers(model)
    for k, layer in zip(jax.random.split(key, len(layers)), layers.values(), strict=True):
        order = jax.random.permutation(k, layer.mask.size)
        for values in (layer.mask, layer.kernel):
            values[...] = values[...].ravel()[order].reshape(values.shape)


@CONTROLS.register("reinitialized")
def reinitialized(model: Any, dense: Any, key: Array) -> None:
    """The same mask with new weights from N(0, 2 / (fan_in * density)), as `scaled_random` draws them."""
    layers = masked_layers(model)
    kept = {path: max(float(layer.mask[...].mean()), 1 / layer.mask.size) for path, layer in layers.items()}
    for path, kernel in he_kernels(model, kept, key).items():
        layers[path].kernel[...] = kernel


@CONTROLS.register("magnitude_mask")
def magnitude_mask(model: Any, dense: Any, key: Array) -> None:
    """The same weights with another mask: in each layer the largest weights of the dense network survive.

    Where the sparse network had no weight, the dense one's is used: a search does not move what is pruned.
    """
    for layer, original in zip(masked_layers(model).values(), masked_layers(dense).values(), strict=True):
        mask, kernel = layer.mask[...], original.kernel[...]
        layer.kernel[...] = jnp.where(mask, layer.kernel[...], kernel)
        layer.mask[...] = masks.keep_largest(jnp.abs(kernel), int(mask.sum()))
