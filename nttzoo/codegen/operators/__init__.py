"""One small reader per ONNX operator, in `READERS`."""

from nttzoo.codegen.operators import elementwise, layers, norms, pooling, views
from nttzoo.codegen.reader import READERS

__all__ = ["READERS", "elementwise", "layers", "norms", "pooling", "views"]
