"""From an NNX model to an `onnx.ModelProto`: plain layers, traced by jax2onnx, cleaned up."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from nttzoo import nn
from nttzoo.errors import ExportError
from nttzoo.export.packages import onnx_packages
from nttzoo.export.unrolled import Unrolled
from nttzoo.nn import taps

Layout = Literal["NHWC", "NCHW"]


class _Identity(nnx.Module):
    """What dropout is in evaluation mode."""

    def __call__(self, inputs: Array, **_: Any) -> Array:
        return inputs


def graph_of(plain: Any, shape: tuple[str | int, ...], *, opset: int, layout: Layout, name: str) -> Any:
    """The `onnx.ModelProto` of a model of plain NNX layers, with static shapes and names after its layers."""
    with onnx_packages():
        import onnx

        from nttzoo.export import graph
    proto = _convert(plain, shape, opset=opset, layout=layout, name=name)
    proto.ir_version = onnx.helper.find_min_ir_version_for(list(proto.opset_import))
    graph.tidy(proto, _weights(plain))
    return proto


def plain_copy(model: Any) -> Any:
    """A copy of ordinary NNX layers in evaluation mode: zeros for pruned weights, nothing for dropout, no loops."""
    plain = nn.densify(model)
    plain.eval()
    for _, layer in nnx.iter_modules(plain):
        if isinstance(layer, nnx.Dropout):
            layer.__class__ = _Identity  # type: ignore[assignment]
        elif type(layer) is nnx.RNN:
            layer.__class__ = Unrolled  # type: ignore[assignment]
    for path, weight in _weights(plain).items():
        if weight.dtype != np.float32:
            raise ExportError(f"weight {path} is {weight.dtype}; only float32 models are exported.")
        if not np.isfinite(weight).all():
            raise ExportError(f"weight {path} has values that are not finite.")
    return plain


def _weights(model: nnx.Module) -> dict[str, np.ndarray]:
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    return {nn.path_name(path): np.asarray(value[...]) for path, value in state}


def _convert(model: Any, shape: tuple[str | int, ...], *, opset: int, layout: Layout, name: str) -> Any:
    with onnx_packages():
        import jax2onnx

    options: dict[str, Any] = {"inputs_as_nchw": [0]} if layout == "NCHW" else {}
    options |= {"model_name": name, "opset": opset, "input_names": ["images"], "output_names": ["logits"]}
    with _lenient():
        try:
            return jax2onnx.to_onnx(model, [shape], **options)
        except Exception as error:
            culprit = _unsupported_layer(model, shape, opset)
            cure = ""
            if isinstance(error, TypeError) and "positional argument" in str(error):
                cure = ". Give options by name: nnx.max_pool(x, window_shape=(2, 2), strides=(2, 2))"
            elif isinstance(error, TypeError) and "_DimExpr" in str(error):
                cure = ". The size of the batch is a symbol: write x.shape[0], not len(x), or export with batch=1"
            raise ExportError(f"{culprit} cannot be exported to ONNX: {type(error).__name__}: {error}{cure}") from error


@contextmanager
def _lenient() -> Iterator[None]:
    """jax2onnx uses deprecated access to variables, broadcasts freely, and logs which values have no types."""
    logger = logging.getLogger("onnx_ir.serde")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        logger.setLevel(level)


def _unsupported_layer(model: Any, shape: tuple[str | int, ...], opset: int) -> str:
    """The first layer that cannot be exported by itself, or else the model."""
    import jax2onnx

    one = jax.ShapeDtypeStruct((1, *(size for size in shape[1:] if isinstance(size, int))), jnp.float32)
    for call in taps.call_shapes(model, lambda layer: layer is not model and not _has_layers(layer), one):
        try:
            jax2onnx.to_onnx(call.layer, [call.inputs.shape], opset=opset)
        except Exception:
            return f"layer {nn.path_name(call.path)} ({taps.kind_of(call.layer).__name__})"
    return f"{type(model).__name__}, outside of its layers,"


def _has_layers(layer: nnx.Module) -> bool:
    return sum(1 for _ in nnx.iter_modules(layer)) > 1
