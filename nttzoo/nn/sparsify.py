"""Masks for the layers of any NNX model, and back to plain layers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from nttzoo._util.checks import check_flag, check_model
from nttzoo.nn.layers import Conv, Linear, LinearGeneral, add_mask, is_masked, matching, path_name
from nttzoo.ops.convolution import conv_general_dilated

M = TypeVar("M", bound=nnx.Module)
_MASKED: dict[type, type] = {nnx.Linear: Linear, nnx.LinearGeneral: LinearGeneral, nnx.Conv: Conv}


def sparsify(model: M, *, exclude: Sequence[str] = (), copy: bool = True) -> M:
    """Gives every Linear, LinearGeneral and Conv of any NNX module a full mask; weights and outputs stay the same.

    Layers inside attention, recurrent cells and lists are found too. A subclass of these layers with its own
    forward pass is left dense, with a warning.

    Args:
      model: any NNX module.
      exclude: globs over the paths of layers that get no mask, such as ["head", "stem.*"].
      copy: whether to return a copy and leave `model` unchanged.

    Returns:
      The model with masks.

    Raises:
      ModelError: if `model` is not an NNX module.
      OptionError: if a glob matches no layer.

    Example:
      >>> model = nttzoo.sparsify(MyNet(rngs=nnx.Rngs(0)), exclude=["head"])
      >>> nttzoo.prune(model, "magnitude", density=0.05)
    """
    check_model("model", model)
    check_flag("copy", copy)
    model = nnx.clone(model) if copy else model
    excluded = matching([path for path, layer in nnx.iter_modules(model) if isinstance(layer, tuple(_MASKED))], exclude)
    left: list[str] = []
    for path, layer in nnx.iter_modules(model):
        if is_masked(layer) or path in excluded:
            continue
        if masked := _MASKED.get(type(layer)):
            if getattr(layer, "conv_general_dilated", None) is jax.lax.conv_general_dilated:
                layer.conv_general_dilated = conv_general_dilated  # type: ignore[attr-defined]
            # Changing the layer's class in place keeps every reference to it, shared ones included.
            layer.__class__ = masked
            add_mask(layer)
        elif isinstance(layer, tuple(_MASKED)):
            left.append(f"{path_name(path)} ({type(layer).__name__})")
    if left:
        warnings.warn(f"sparsify left these layers dense: {', '.join(left)}", stacklevel=2)
    return model


def unpruned(model: M) -> M:
    """A copy with full masks and all weights set to one, for counting the cost of the dense network."""
    model = nnx.clone(model)
    layer: Any
    for _, layer in nnx.iter_modules(model):
        if is_masked(layer):
            layer.mask[...] = jnp.ones_like(layer.mask[...])
            layer.kernel[...] = jnp.ones_like(layer.kernel[...])
    return model


def densify(model: M) -> M:
    """The inverse of `sparsify`: a copy of plain NNX layers, with zeros in place of the pruned weights.

    Args:
      model: any NNX module with masked layers.

    Returns:
      A copy without masks that computes the same outputs.

    Example:
      >>> plain = nttzoo.densify(nttzoo.load("lenet300-mnist-1pct-global"))
    """
    check_model("model", model)
    model = nnx.clone(model)
    layer: Any
    for _, layer in nnx.iter_modules(model):
        if is_masked(layer):
            layer.kernel[...] = layer.masked_kernel()
            layer.__class__ = next(plain for plain, masked in _MASKED.items() if isinstance(layer, masked))
            if isinstance(layer, nnx.Conv):
                layer.mask = None
                if layer.conv_general_dilated is conv_general_dilated:
                    layer.conv_general_dilated = jax.lax.conv_general_dilated
            else:
                del layer.mask
    return model
