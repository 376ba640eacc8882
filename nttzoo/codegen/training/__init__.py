"""Training as compiled C: forward, backward and update at the cost of the weights that are left."""

from nttzoo.export import onnx_packages

with onnx_packages():
    from nttzoo.codegen.training.compile import compile_training
    from nttzoo.codegen.training.freestanding import ExportedTraining, export_training_c
    from nttzoo.codegen.training.library import UpdateRule
    from nttzoo.codegen.training.step import TrainingStep

__all__ = ["ExportedTraining", "TrainingStep", "UpdateRule", "compile_training", "export_training_c"]
