"""Sparse layers, and conversion from and to plain NNX layers."""

from nttzoo.nn.layers import (
    Conv,
    LayerPath,
    Linear,
    LinearGeneral,
    Mask,
    is_masked,
    masked_layers,
    matching,
    merge_params,
    path_name,
    set_masks,
    split_masked,
    split_params,
)
from nttzoo.nn.sparsify import densify, sparsify, unpruned

__all__ = [
    "Conv",
    "Linear",
    "LinearGeneral",
    "Mask",
    "LayerPath",
    "densify",
    "is_masked",
    "masked_layers",
    "matching",
    "merge_params",
    "path_name",
    "set_masks",
    "sparsify",
    "split_masked",
    "split_params",
    "unpruned",
]
