"""How much ONNX the C generator takes: ONNX's own cases for the operators that we claim, and files of other exporters.

Each is right, refused with our error, or wrong; nothing may be wrong.
"""

from __future__ import annotations

import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from nttzoo import codegen, errors
from nttzoo._util import provenance
from nttzoo.codegen import build, frontend, selfcheck
from nttzoo.codegen.operators import READERS

Outcome = tuple[str, str]  # "right", "refused" or "wrong"; why


def run(folders: list[str]) -> dict[str, Any]:
    """Counts of ONNX's cases, and of the .onnx files in each of some folders."""
    with tempfile.TemporaryDirectory() as cache:
        cases = {name: case_outcome(model, x, y, Path(cache)) for name, model, x, y in backend_cases()}
        result: dict[str, Any] = {"onnx_cases": _counted(cases)}
        for folder in map(Path, folders):
            files = {path.name: file_outcome(path, Path(cache)) for path in sorted(folder.glob("*.onnx"))}
            result[folder.name] = _counted(files)
    return result | {"onnx": onnx.__version__, "origin": provenance.origin()}


def tables(result: dict[str, Any]) -> str:
    """The counts, one line each."""
    counts = {name: value for name, value in result.items() if isinstance(value, dict) and "right" in value}
    return "\n".join(
        f"{name}: {value['right']} right, {value['refused']} refused, {value['wrong']} wrong"
        for name, value in counts.items()
    )


def _counted(outcomes: dict[str, Outcome]) -> dict[str, Any]:
    counts = Counter(outcome for outcome, _ in outcomes.values())
    return {
        **{kind: counts[kind] for kind in ("right", "refused", "wrong")},
        "why": {name: f"{outcome}: {why}" for name, (outcome, why) in outcomes.items() if outcome != "right"},
    }


def backend_cases() -> Iterator[tuple[str, onnx.ModelProto, np.ndarray, np.ndarray]]:
    """(name, graph, input, output) of ONNX's cases for operators that we claim; all inputs but one are constants."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    for case in cases:
        if case.model is None or not {node.op_type for node in case.model.graph.node} <= READERS.keys():
            continue
        inputs, outputs = (case.data_sets or [([], [])])[0]
        if not inputs or any(not isinstance(value, np.ndarray) for value in [*inputs[1:], outputs[0]]):
            continue  # sequences and optional values
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for value, content in zip(model.graph.input[1:], inputs[1:], strict=False):
            model.graph.initializer.append(numpy_helper.from_array(content, value.name))
        del model.graph.input[1:]
        yield case.name, model, np.asarray(inputs[0]), outputs[0]


def case_outcome(model: onnx.ModelProto, inputs: np.ndarray, expected: np.ndarray, cache: Path) -> Outcome:
    """Whether a graph is compiled to what it should compute."""
    try:
        source, shape = codegen.source_of(model, "net")
        answer = build.build(source, input_shape=shape, threads=1, cache=cache)(inputs)
    except errors.NttzooError as error:
        return "refused", str(error)
    same = answer.size == expected.size and np.allclose(
        answer.reshape(expected.shape), expected, rtol=1e-3, atol=1e-5, equal_nan=True
    )
    return ("right", "") if same else ("wrong", "other numbers")


def file_outcome(path: Path, cache: Path) -> Outcome:
    """Whether a file is compiled to what ONNX Runtime computes of it."""
    proto = onnx.load(path)
    onnxruntime.set_default_logger_severity(3)
    try:
        source, shape = codegen.source_of(proto, "net")
        network = build.build(source, input_shape=shape, threads=1, cache=cache)
        prepared = frontend.prepared(proto)
    except errors.NttzooError as error:
        return "refused", str(error)
    worst = selfcheck.worst_difference(network, partial(selfcheck.outputs_of_graph, prepared))
    return ("right", "") if worst <= selfcheck.TOLERANCE else ("wrong", f"{worst:.1e} of the largest output")
