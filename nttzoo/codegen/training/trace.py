"""Traces an NNX model to a program whose weights are the indices of parameters.

The model is exported with its parameters replaced by consecutive integers. Wherever one of these integers appears in
the graph, that parameter is used, whatever transposes are in between. A parameter that does not appear exactly once is
used in some other way, for which there is no backward rule.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
from flax import nnx
from google.protobuf.message import DecodeError

from nttzoo import __version__, export, nn
from nttzoo._util import files, libraries
from nttzoo.codegen import frontend, optimize, views
from nttzoo.codegen.ir import Conv, Linear, Program
from nttzoo.dataflow import fingerprint
from nttzoo.errors import ExportError, FileError, RunError

FIRST = 2**22 + 1  # an unlikely constant; integers up to 2**24 are exact in float32
LIMIT = 2**24 - FIRST
GRAPH_LIMIT = 2**31  # bytes of the largest graph that is cached


@dataclass(frozen=True)
class Parameters:
    """The trainable arrays of a model, flattened and concatenated."""

    paths: tuple[Any, ...]
    shapes: tuple[tuple[int, ...], ...]
    starts: tuple[int, ...]
    size: int

    @classmethod
    def of(cls, model: nnx.Module) -> Parameters:
        """The `nnx.Param` variables of a model in path order."""
        state = nnx.to_flat_state(nnx.state(model, nnx.Param))
        paths = tuple(path for path, _ in state)
        shapes = tuple(tuple(value.shape) for _, value in state)
        sizes = [int(np.prod(shape)) for shape in shapes]
        starts = tuple(int(start) for start in np.cumsum([0, *sizes[:-1]]))
        return cls(paths, shapes, starts, sum(sizes))

    def name_at(self, index: int) -> str:
        """The name of the parameter that holds the element at a flat index."""
        return nn.path_name(self.paths[int(np.searchsorted(self.starts, index, side="right")) - 1])

    def flatten(self, model: nnx.Module) -> np.ndarray:
        """The model's parameters as one float32 vector."""
        state = nnx.to_flat_state(nnx.state(model, nnx.Param))
        return np.concatenate([np.zeros(0, np.float32), *(np.ravel(value[...]) for _, value in state)])

    def survivors(self, model: nnx.Module) -> np.ndarray:
        """Which elements of the vector are not pruned: bool [size]."""
        kept = np.ones(self.size, bool)
        masks: dict[Any, Any] = {path: layer for path, layer in nnx.iter_modules(model) if nn.is_masked(layer)}
        for path, shape, start in zip(self.paths, self.shapes, self.starts, strict=True):
            if path[-1] == "kernel" and path[:-1] in masks:
                kept[start : start + int(np.prod(shape))] = np.ravel(masks[path[:-1]].mask[...])
        return kept

    def unflatten(self, values: np.ndarray) -> dict[Any, np.ndarray]:
        """A vector as {path: array}."""
        parts = zip(self.paths, self.shapes, self.starts, strict=True)
        return {path: values[start : start + int(np.prod(shape))].reshape(shape) for path, shape, start in parts}

    def assign(self, model: nnx.Module, values: np.ndarray) -> None:
        """Replaces the model's parameters, in place, by those of a vector."""
        arrays = self.unflatten(values)
        state = nnx.to_flat_state(nnx.state(model, nnx.Param))
        replaced = {path: value.replace(jnp.asarray(arrays[path])) for path, value in state}
        nnx.update(model, nnx.from_flat_state(replaced))


@dataclass(frozen=True)
class Traced:
    """A training program, the parameters that its weights stand for, and a hash of what the model computes."""

    program: Program
    parameters: Parameters
    digest: str


class _Dropout(nnx.Dropout):
    """Dropout as the exporter knows it: without `rngs`."""

    def __call__(self, inputs: Any, **_: Any) -> Any:
        return nnx.Dropout.__call__(self, inputs)


def trace(model: nnx.Module, input_shape: tuple[int, ...], *, dropout: bool) -> Traced:
    """The training program of a model, fused; its weights are `FIRST` plus the index of a parameter."""
    plain = nn.densify(model)
    plain.train()
    for path, layer in nnx.iter_modules(plain):
        if isinstance(layer, nnx.Dropout):
            if dropout and layer.broadcast_dims:
                raise ExportError(
                    f"layer {nn.path_name(path)} (Dropout) has broadcast_dims, which have no backward rule."
                )
            layer.__class__ = _Dropout
            layer.deterministic = not dropout
        elif isinstance(layer, nnx.BatchNorm):
            raise ExportError(f"layer {nn.path_name(path)} (BatchNorm) couples the examples of a batch: JAX trains it.")
        elif isinstance(layer, nnx.RNN):
            raise ExportError(f"layer {nn.path_name(path)} (RNN) uses its parameters at every step: JAX trains it.")
    parameters = Parameters.of(plain)
    if not parameters.size:
        raise ExportError("the model has no parameters to train.")
    if parameters.size > LIMIT:
        raise ExportError(f"the model has {parameters.size:,} parameters; up to {LIMIT:,} can be traced.")
    for path, dtype in ((path, value.dtype) for path, value in nnx.to_flat_state(nnx.state(plain, nnx.Param))):
        if dtype != np.float32:
            raise ExportError(f"parameter {nn.path_name(path)} is {dtype}; only float32 models are compiled.")
    parameters.assign(plain, np.arange(FIRST, FIRST + parameters.size, dtype=np.float32))
    proto, digest = _graph(plain, input_shape)
    program = frontend.read(proto, training=True)
    views.simplify(program)
    optimize.fuse(program, into_weights=False)
    _check_each_used_once(program, parameters)
    return Traced(program, parameters, digest)


def _graph(plain: nnx.Module, input_shape: tuple[int, ...]) -> tuple[onnx.ModelProto, str]:
    """(the numbered model as ONNX, cached because the exporter takes several seconds to start; its key).

    The key is a hash of what the model computes, its constants and parameters included, and who exports it.
    """
    versions = [__version__, *map(importlib.metadata.version, ("jax", "flax", "jax2onnx", "onnx"))]
    one = jax.ShapeDtypeStruct((1, *input_shape), jnp.float32)
    stochastic = nnx.clone(plain)
    stochastic.eval()
    # A copy, so that transforms within the model may change it.
    computed = jax.make_jaxpr(lambda x: nnx.clone(stochastic)(x))(one)
    rates = [f"{layer.rate} {layer.deterministic}" for _, layer in nnx.iter_modules(plain) if type(layer) is _Dropout]
    text = "\0".join([fingerprint(computed), *rates, *versions, str(input_shape)])
    key = hashlib.sha256(text.encode()).hexdigest()[:32]
    file = libraries.cache_folder() / f"graph-{key}.bin"
    if (kept := _kept(file)) is not None:
        return kept, key
    proto = export.graph_of(plain, ("B", *input_shape), opset=17, layout="NHWC", name="network")
    with suppress(OSError, RunError):  # training does not need the cache
        files.private_folder(file.parent)
        content = proto.SerializeToString()
        files.write_bytes(file, hashlib.sha256(content).digest() + content)
    return proto, key


def _kept(file: Path) -> onnx.ModelProto | None:
    """The graph in a cached file, which starts with its hash; None if the file is missing or damaged."""
    with suppress(FileError, DecodeError):
        content = files.read_bytes(file, limit=GRAPH_LIMIT)
        if hashlib.sha256(content[32:]).digest() == content[:32]:
            return onnx.load_from_string(content[32:])
    return None


def parameters_in(values: np.ndarray) -> np.ndarray:
    """The flat indices of the parameters that an array of a traced program stands for; -1 for plain constants."""
    found = np.asarray(values, np.float64)
    return np.where(found >= FIRST, found - FIRST, -1).astype(np.int64)


def _check_each_used_once(program: Program, parameters: Parameters) -> None:
    uses = np.zeros(parameters.size, int)
    for op in program.ops:
        for field in ("weight", "bias", "scale", "shift"):
            value = getattr(op, field, None)
            if value is None:
                continue
            index = parameters_in(value)
            if (index >= parameters.size).any():
                raise ExportError(f"{op.name}: a parameter is changed before it is used.")
            uses[np.unique(index[index >= 0])] += 1  # scales are broadcast
            if field == "weight" and (index < 0).any() and isinstance(op, Conv | Linear):
                raise ExportError(f"{op.name}: its weights are not the parameters of a layer.")
    for wrong, what in ((uses > 1, "more than once"), (uses == 0, "in a way that has no backward rule")):
        if wrong.any():
            raise ExportError(f"parameter {parameters.name_at(int(np.argmax(wrong)))} is used {what}.")
