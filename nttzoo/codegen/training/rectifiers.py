"""Rectifiers that the node which computes a value applies to it; other functions are nodes of their own."""

from __future__ import annotations

from nttzoo.codegen.ir import Function
from nttzoo.codegen.operators.elementwise import LIMITS
from nttzoo.codegen.training.graph import Value


def canonical(function: Function) -> Function:
    """The function under one name: some exporters write a ReLU as a clip."""
    return ("relu",) if function == ("clip", 0.0, LIMITS[1]) else function


def fuse(value: Value, functions: list[Function], *, leaky: bool = True) -> list[Function]:
    """Fuses a leading ReLU, or leaky ReLU, into the node that computes the value; returns the other functions."""
    if not functions:
        return []
    name, *parameters = functions[0]
    if name == "relu":
        value.gate = 0.0
    elif name == "leaky_relu" and leaky and parameters[0] > 0:
        value.gate = float(parameters[0])
    else:
        return list(functions)
    return list(functions[1:])
