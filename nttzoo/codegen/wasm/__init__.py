"""Sparse networks as WebAssembly: the generated C as a module that imports nothing, and a small ES module around it."""

from nttzoo.codegen.wasm.modules import (
    ExportedWasm,
    Module,
    export_training_wasm,
    export_wasm,
    javascript,
    learner,
    network,
)

__all__ = ["ExportedWasm", "Module", "export_training_wasm", "export_wasm", "javascript", "learner", "network"]
