"""Records the inputs and outputs of every layer call during one forward pass of any NNX model.

`record` runs a model and returns, for each call of a chosen layer, its inputs and outputs. A hook may change the
output: add a perturbation, whose derivative at zero is the cotangent at that layer's output, or replace it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array

from nttzoo.nn.layers import LayerPath

_RECORDER: ContextVar[_Recorder | None] = ContextVar("nttzoo_recorder", default=None)


@dataclass(frozen=True)
class Call:
    """One call of one layer: its path, the layer itself, and its input and output arrays."""

    path: LayerPath
    layer: Any
    inputs: Array
    outputs: Array
    plain: bool = True  # whether the inputs were its only argument


# hook(index of the call, call) -> what the model sees in place of the call's outputs
Hook = Callable[[int, Call], Array]


class _Recorder:
    def __init__(self, layers: dict[int, LayerPath], hook: Hook | None):
        self.layers = layers
        self.hook = hook
        self.calls: list[Call] = []

    def tap(self, layer: Any, given: list[Any], outputs: Array) -> Array:
        call = Call(self.layers[id(layer)], layer, given[0], outputs, plain=len(given) == 1)
        self.calls.append(call)
        return self.hook(len(self.calls) - 1, call) if self.hook else outputs


@cache
def _tapped(kind: type) -> type:
    """A subclass of a layer's class that reports its calls to the active recorder."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Array:
        outputs = kind.__call__(self, *args, **kwargs)
        recorder = _RECORDER.get()
        # Inside an NNX transform (scan, jit, remat ...) the layer is a copy that the recorder does not know: tracers
        # must not leave the transform.
        if recorder is None or id(self) not in recorder.layers:
            return outputs
        return recorder.tap(self, [value for value in (*args, *kwargs.values()) if value is not None], outputs)

    return type(kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__, "__doc__": kind.__doc__})


def record(
    model: nnx.Module, wanted: Callable[[Any], bool], run: Callable[[Any], Any], hook: Hook | None = None
) -> tuple[Any, list[Call]]:
    """`run(copy of model)` and the calls of all its wanted layers, in the order of execution.

    Calls inside an NNX transform of the model's own are not recorded.
    """
    copy = nnx.clone(model)
    layers: dict[int, LayerPath] = {}
    for path, layer in nnx.iter_modules(copy):
        if wanted(layer):
            layer.__class__ = _tapped(type(layer))
            layers[id(layer)] = path
    recorder = _Recorder(layers, hook)
    token = _RECORDER.set(recorder)
    try:
        return run(copy), recorder.calls
    finally:
        _RECORDER.reset(token)


def kind_of(layer: Any) -> type:
    """The class of a layer as it was before it was tapped."""
    kind = type(layer)
    return kind.__bases__[0] if kind is _tapped(kind.__bases__[0]) else kind


def call_shapes(model: nnx.Module, wanted: Callable[[Any], bool], inputs: Any) -> list[Call]:
    """The calls with shapes in place of arrays: nothing is computed. `inputs` may be a `jax.ShapeDtypeStruct`."""
    found: list[Call] = []

    def shapes(x: Array) -> list[tuple[Array, Array]]:
        _, calls = record(model, wanted, lambda m: m(x))
        found.extend(calls)
        return [(call.inputs, call.outputs) for call in calls]

    pairs = jax.eval_shape(shapes, inputs)
    return [replace(call, inputs=inputs, outputs=outputs) for call, (inputs, outputs) in zip(found, pairs, strict=True)]
