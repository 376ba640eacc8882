"""Masks for the layers of any NNX model, and back to plain layers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
from flax import nnx

from nttzoo._util.checks import check_flag, check_model
from nttzoo.nn.layers import Conv, Linear, LinearGeneral, add_mask, is_masked, matching, path_name
from nttzoo.ops.convolution import conv_general_dilated

M = TypeVar("M", bound=nnx.Module)
_MASKED: dict[type, type] = {nnx.Linear: Linear, nnx.LinearGeneral: LinearGeneral, nnx.Conv: Conv}


def sparsify(model: M, *, exclude: Sequence[str] = (), copy: bool = True) -> M:
    """Gives every Linear, LinearGeneral and Conv of any NNX module a full mask; weights and outputs stay the same.

    Layers inside attention, recurrent cells and lists are found too. Those whose path matches a glob of `exclude`, such
    as ["head", "stem.*"], stay as they are. With `copy=False` the model itself is changed. A subclass of these layers
    with a forward pass of its own is left dense, with a warning.
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
            # Changing the class of the layer where it stands keeps every reference to it, shared ones included.
            layer.__class__ = masked
            add_mask(layer)
        elif isinstance(layer, tuple(_MASKED)):
            left.append(f"{path_name(path)} ({type(layer).__name__})")
    if left:
        warnings.warn(f"sparsify left these layers dense: {', '.join(left)}", stacklevel=2)
    return model


def densify(model: M) -> M:
    """The inverse of `sparsify`: a copy of plain NNX layers, with zeros in place of the pruned weights."""
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
