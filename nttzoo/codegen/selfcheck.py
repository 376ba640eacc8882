"""Compares compiled networks with an independent implementation: JAX or ONNX Runtime."""

from __future__ import annotations

import hashlib
import os

import numpy as np
import onnx

from nttzoo import export
from nttzoo.codegen.build import Compiled
from nttzoo.errors import ExportError
from nttzoo.export import Oracle

TOLERANCE = 1e-4  # relative to the largest output: above rounding errors, below mistakes


def batches(network: Compiled) -> list[np.ndarray]:
    """Inputs for a comparison: random ones, and digits where they fit."""
    return export.parity_batches(network.input_shape, "B", None)


def worst_difference(network: Compiled, oracle: Oracle) -> float:
    """max |difference| / max |output| on random inputs, and on digits where they fit; NaN where only one has a NaN."""
    worst = 0.0
    for inputs in batches(network):
        expected = oracle(inputs).reshape(len(inputs), -1)
        got = network(inputs)
        alike = (got == expected) | (np.isnan(got) & np.isnan(expected))
        if not alike.all():
            got, expected = got[~alike], expected[~alike]
            worst = float(np.maximum(worst, export.difference(got, expected)))  # keeps a NaN
    return worst


def check_once(network: Compiled, proto: onnx.ModelProto, oracle: Oracle) -> None:
    """Raises `ExportError` if a compiled network does not compute what its graph does; a check passed is remembered."""
    content = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
    passed = network.library.with_suffix(".checked")
    if passed.exists() and passed.read_bytes() == content.encode():
        return
    try:
        worst = worst_difference(network, oracle)
    except ExportError:  # ONNX Runtime is missing, or it rejects the graph
        return
    if not worst <= TOLERANCE:
        raise ExportError(
            f"the compiled network's outputs differ from the model's by {worst:.2e} of the largest output, more than "
            f"{TOLERANCE:.0e}: this is a bug in nttzoo. Please report it with the model."
        )
    part = passed.with_name(f".{passed.name}.{os.getpid()}")
    part.write_text(content)
    os.replace(part, passed)


def outputs_of_graph(
    proto: onnx.ModelProto, inputs: np.ndarray, noise: np.random.Generator | None = None
) -> np.ndarray:
    """The outputs of ONNX Runtime, in batches of the size that the graph requires; `noise` perturbs the weights."""
    with export.onnx_packages():
        import onnxruntime

    if noise is not None:
        moved = onnx.ModelProto()
        moved.CopyFrom(proto)
        for tensor in moved.graph.initializer:
            values = export.by_one_bit(onnx.numpy_helper.to_array(tensor), noise)
            tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
        proto = moved
    try:
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common base
        raise ExportError(f"ONNX Runtime rejects the graph:  {error}") from error
    taken = session.get_inputs()[0]
    size = taken.shape[0] if isinstance(taken.shape[0], int) else len(inputs)
    filled = np.resize(inputs, (-(-len(inputs) // size) * size, *inputs.shape[1:]))
    answers = [session.run(None, {taken.name: batch})[0] for batch in np.split(filled, len(filled) // size)]
    return np.concatenate(answers)[: len(inputs)]
