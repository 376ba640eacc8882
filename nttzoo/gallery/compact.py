"""What is drawn and run in the gallery, in few bytes: rounded, where nobody sees a difference.

Floating-point weights hardly compress. With the 8 significant bits of bfloat16 they take half the space.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
from jaxtyping import Float, Int, Integer, Shaped, UInt8, UInt16, UInt32

from nttzoo import zoo
from nttzoo.codegen import loading, wasm

LEVELS = 15  # of a weight's size in a picture
GRAYS = 16  # of a digit


def network(name: str) -> wasm.Module:
    """The trained weights of a published network as a module, rounded."""
    return rounded_network(zoo.onnx_file(name), name)


def rounded_network(file: Path, name: str) -> wasm.Module:
    """A network in an ONNX file as a module, its weights rounded; biases are exact."""
    proto = loading.load(file)
    sparse = [tensor.values for tensor in proto.graph.sparse_initializer]
    for tensor in [*sparse, *(one for one in proto.graph.initializer if len(one.dims) > 1)]:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(rounded(values), tensor.name))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "model.onnx"
        onnx.save(proto, copy)
        return wasm.network(copy, name=name)


def rounded(values: Float[np.ndarray, " *shape"]) -> Float[np.ndarray, " *shape"]:
    """The nearest bfloat16, as float32."""
    return (brain_floats(values).astype(np.uint32) << 16).view(np.float32)


def brain_floats(values: Float[np.ndarray, " *shape"]) -> UInt16[np.ndarray, " *shape"]:
    """The upper halves of float32 numbers, rounded: bfloat16."""
    bits = np.atleast_1d(np.asarray(values, np.float32)).view(np.uint32).reshape(np.shape(values))
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def gaps(places: Int[np.ndarray, " n"]) -> UInt32[np.ndarray, " n"]:
    """Increasing numbers as the differences between neighbors, the first from zero: mostly small ones."""
    return np.diff(places, prepend=0).astype(np.uint32)


def grays(images: UInt8[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    """Digits in fewer shades."""
    step = 255 / (GRAYS - 1)
    return np.round(np.round(images / step) * step).astype(np.uint8)


def signed(pictures: Shaped[np.ndarray, "n h w"]) -> Integer[np.ndarray, "n h w"]:
    """Weights from -LEVELS to LEVELS, each picture by its own largest: it shows a pattern, not a size."""
    largest = np.abs(pictures).max((1, 2), keepdims=True)
    return np.round(LEVELS * pictures / np.where(largest > 0, largest, 1)).astype(np.int8)


def triangles(matrices: Float[np.ndarray, "m n n"]) -> UInt8[np.ndarray, "m k"]:
    """The lower triangles of symmetric matrices on one scale from 0 to 255; what is negative is drawn as 0."""
    rows, columns = np.tril_indices(matrices.shape[-1])
    values = np.clip(matrices[:, rows, columns], 0, None)
    return np.round(255 * values / max(values.max(), 1e-30)).astype(np.uint8)
