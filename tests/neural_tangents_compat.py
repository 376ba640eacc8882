"""Puts back the names that neural-tangents 0.6.5 needs and that newer versions of JAX removed; then imports it.

Its Jacobian contraction and NTK-vector products work this way and make an independent oracle.
"""

import warnings

import jax
from jax.extend import core as extended
from jax.interpreters import ad


def import_neural_tangents():
    """The neural_tangents module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import jax._src.core as core
        import jax._src.util as util

        for name in ("Jaxpr", "JaxprEqn", "Literal", "Value", "Var", "AbstractValue", "Primitive", "ClosedJaxpr"):
            _put(jax.core, name, getattr(core, name, None) or getattr(extended, name, None) or object)
        for name in ("safe_map", "safe_zip"):
            _put(_module("jax.util"), name, getattr(util, name))
        _put(ad, "zeros_like_p", core.Primitive("zeros_like"))
        import neural_tangents
    return neural_tangents


def _put(module, name, value):
    try:
        getattr(module, name)
    except AttributeError:
        setattr(module, name, value)


def _module(name):
    import importlib
    import sys
    import types

    try:
        return importlib.import_module(name)
    except ImportError:
        sys.modules[name] = types.ModuleType(name)
        return sys.modules[name]
