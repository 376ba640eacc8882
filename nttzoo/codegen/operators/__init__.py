"""One small reader per ONNX operator, in `READERS`."""

from nttzoo.codegen.operators import (
    arithmetic,
    classic,
    elementwise,
    identity,
    joining,
    layers,
    norms,
    pooling,
    recurrent,
    shapes,
    views,
)
from nttzoo.codegen.reader import READERS

__all__ = [
    "READERS",
    "arithmetic",
    "classic",
    "elementwise",
    "identity",
    "joining",
    "layers",
    "norms",
    "pooling",
    "recurrent",
    "shapes",
    "views",
]
