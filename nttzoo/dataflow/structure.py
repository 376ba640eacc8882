"""A key for what a model computes, for everything that is compiled or checked once for many models.

NNX's graph definition of a model is not enough: a forward pass may also depend on the content of a list or config
object that the model refers to, or on a closure. The key therefore includes the traced program.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

_ADDRESS = re.compile(r"0x[0-9a-f]+")


@dataclass(frozen=True, eq=True)
class Structure:
    """A model's graph and a hash of its program; hashable, also where attributes of layers are not."""

    graph: Any
    program: str

    def __hash__(self) -> int:
        return hash(self.program)


def structure(graph: Any, function: Callable[..., Any], *arguments: Any) -> Structure:
    """The structure of a model as `function` uses it, with the function's arguments."""
    return Structure(graph, fingerprint(jax.make_jaxpr(function)(*arguments)))


def fingerprint(program: ClosedJaxpr) -> str:
    """A hash of a traced program and its constants; constants that are traced or on other hosts count by their type."""
    # Functions are printed with their addresses, which differ each time a program is traced.
    digest = hashlib.sha256(_ADDRESS.sub("", str(program.jaxpr)).encode())
    for constant in _constants(program):
        if isinstance(constant, jax.core.Tracer) or not getattr(constant, "is_fully_addressable", True):
            digest.update(str(constant.aval).encode())
        elif isinstance(constant, jax.Array) and jnp.issubdtype(constant.dtype, jax.dtypes.prng_key):
            digest.update(np.asarray(jax.random.key_data(constant)).tobytes())
        else:
            digest.update(np.asarray(constant).tobytes())
    return digest.hexdigest()


def _constants(program: ClosedJaxpr | Jaxpr) -> Iterator[Any]:
    """The constants of a program and of those inside it."""
    if isinstance(program, ClosedJaxpr):
        yield from program.consts
        program = program.jaxpr
    for equation in program.eqns:
        for inner in jax.tree.leaves(list(equation.params.values())):
            if isinstance(inner, ClosedJaxpr | Jaxpr):
                yield from _constants(inner)
