"""nttzoo: a Flax NNX model zoo of sparse networks found by Neural Tangent Transfer.

The modules and names below are imported when they are first used, so that `import nttzoo` is instant.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nttzoo.architectures import create as create
    from nttzoo.codegen import compile as compile
    from nttzoo.codegen import export_c as export_c
    from nttzoo.codegen.training import compile_training as compile_training
    from nttzoo.codegen.training import export_training_c as export_training_c
    from nttzoo.codegen.wasm import export_training_wasm as export_training_wasm
    from nttzoo.codegen.wasm import export_wasm as export_wasm
    from nttzoo.export import export_onnx as export_onnx
    from nttzoo.nn import densify as densify
    from nttzoo.nn import sparsify as sparsify
    from nttzoo.ntk import empirical_ntk as empirical_ntk
    from nttzoo.ntk import kernel_distance as kernel_distance
    from nttzoo.sparsity.cost import Speedup as Speedup
    from nttzoo.sparsity.cost import speedup as speedup
    from nttzoo.sparsity.pruning import prune as prune
    from nttzoo.training import TrainConfig as TrainConfig
    from nttzoo.training import fit as fit
    from nttzoo.zoo import info as info
    from nttzoo.zoo import list_models as list_models
    from nttzoo.zoo import load as load
    from nttzoo.zoo.saving import save as save

# What `nttzoo.X` and `from nttzoo import X` give: modules ...
_MODULES = {
    "architectures": "architectures",
    "baselines": "experiments.baselines",
    "codegen": "codegen",
    "cost": "sparsity.cost",
    "data": "data",
    "dynamics": "ntk.linearized",
    "errors": "errors",
    "export": "export",
    "gallery": "gallery",
    "masks": "sparsity.masks",
    "nn": "nn",
    "ntk": "ntk",
    "objective": "search.objective",
    "pruning": "sparsity.pruning",
    "recipes": "search.recipes",
    "search": "search",
    "taps": "nn.taps",
    "training": "training",
    "zoo": "zoo",
}
# ... and names in modules.
_NAMES = {
    "sparsify": "nn",
    "densify": "nn",
    "prune": "sparsity.pruning",
    "fit": "training",
    "TrainConfig": "training",
    "speedup": "sparsity.cost",
    "Speedup": "sparsity.cost",
    "empirical_ntk": "ntk",
    "kernel_distance": "ntk",
    "create": "architectures",
    "load": "zoo",
    "save": "zoo.saving",
    "info": "zoo",
    "list_models": "zoo",
    "export_onnx": "export",
    "export_c": "codegen",
    "compile": "codegen",
    "compile_training": "codegen.training",
    "export_training_c": "codegen.training",
    "export_wasm": "codegen.wasm",
    "export_training_wasm": "codegen.wasm",
}

__all__ = ["__version__", *_NAMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"nttzoo.{_NAMES[name]}"), name)
    if name in _MODULES:
        return importlib.import_module(f"nttzoo.{_MODULES[name]}")
    raise AttributeError(f"module 'nttzoo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
