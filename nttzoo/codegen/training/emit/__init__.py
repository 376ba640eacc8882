"""From a graph to C: one forward and one backward function per node, on an arena of vectors.

`m` is the arena, `net` the run-time tables and weights, `at` the block of examples: its dropout key, its gradient, and
the partial sums of its weights.
"""

from __future__ import annotations

from collections.abc import Callable

from nttzoo.codegen.training.emit import copies, elementwise
from nttzoo.codegen.training.emit.affine import affine
from nttzoo.codegen.training.emit.norms import normalization
from nttzoo.codegen.training.emit.pooling import pooling
from nttzoo.codegen.training.emit.writer import Lines, Writer
from nttzoo.codegen.training.graph import (
    Activation,
    Affine,
    Concatenation,
    Copy,
    Drop,
    Node,
    Normalization,
    Pooling,
    Sum,
)

_EMITTERS: dict[type[Node], Callable[..., tuple[Lines, Lines]]] = {
    Affine: affine,
    Pooling: pooling,
    Activation: elementwise.activation,
    Drop: elementwise.drop,
    Sum: elementwise.sum,
    Copy: copies.copy,
    Concatenation: copies.concatenation,
    Normalization: normalization,
}


def functions(writer: Writer, node: Node) -> str:
    """A node's two functions."""
    forward, backward = _EMITTERS[type(node)](writer, node)
    return "\n".join([writer.function(node, "forward", forward), writer.function(node, "backward", backward)])


__all__ = ["Writer", "functions"]
