"""One small reader per ONNX operator, in `READERS`."""

from nttzoo.codegen.operators import arithmetic, classic, elementwise, layers, norms, pooling, recurrent, views
from nttzoo.codegen.reader import READERS

__all__ = ["READERS", "arithmetic", "classic", "elementwise", "layers", "norms", "pooling", "recurrent", "views"]
