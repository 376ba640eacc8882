"""Training as compiled C: forward, backward and update at the cost of the weights that are left."""

from nttzoo.export import onnx_packages

with onnx_packages():
    from nttzoo.codegen.training.library import UpdateRule
    from nttzoo.codegen.training.step import TrainingStep, compile_training

__all__ = ["TrainingStep", "UpdateRule", "compile_training"]
