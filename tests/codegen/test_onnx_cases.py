"""ONNX's own cases for the operators that we claim: right, or refused with our own error."""

import numpy as np
import onnx
import pytest

from benchmarks import coverage
from nttzoo import codegen, errors
from nttzoo.codegen import build


@pytest.mark.slow
def test_all_of_onnx_own_cases_are_right_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "FLAGS", ("-std=c99", "-O0", "-shared", "-fPIC"))  # many small programs, run once
    outcomes = {
        name: coverage.case_outcome(model, inputs, expected, tmp_path)
        for name, model, inputs, expected in coverage.backend_cases()
    }
    assert not {name: why for name, (outcome, why) in outcomes.items() if outcome == "wrong"}
    right = sum(outcome == "right" for outcome, _ in outcomes.values())
    assert right >= 300


def test_a_wrong_answer_would_be_noticed(tmp_path):
    _, model, inputs, expected = next(case for case in coverage.backend_cases() if case[0] == "test_relu")
    assert coverage.case_outcome(model, inputs, expected, tmp_path) == ("right", "")
    assert coverage.case_outcome(model, inputs, expected + 1, tmp_path)[0] == "wrong"


def with_old_opset(kind, opset, second, **attributes):
    node = onnx.helper.make_node(kind, ["x", "c"], ["y"], name="old", **attributes)
    source = onnx.helper.make_tensor_value_info("x", 1, ["B", 3, 2, 2])
    target = onnx.helper.make_tensor_value_info("y", 1, None)
    constant = onnx.numpy_helper.from_array(second, "c")
    graph = onnx.helper.make_graph([node], "g", [source], [target], [constant])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=3)


def test_constants_of_old_opsets_are_placed_by_axis(tmp_path):
    shift = np.array([1.0, 20.0, 300.0], np.float32)
    source, shape = codegen.source_of(with_old_opset("Add", 6, shift, broadcast=1, axis=1), "net")
    run = build.build(source, input_shape=shape, threads=1, cache=tmp_path)
    x = np.random.default_rng(0).normal(size=(2, 3, 2, 2)).astype(np.float32)
    np.testing.assert_allclose(run(x).reshape(x.shape), x + shift[:, None, None], rtol=1e-6)
    with pytest.raises(errors.ExportError):
        codegen.source_of(with_old_opset("Add", 6, shift), "net")


@pytest.mark.parametrize(
    ("shape", "message"),
    [([], "no shape, or no axes"), (None, "no shape, or no axes"), (["B", "h"], "no fixed size")],
)
def test_inputs_without_a_shape_are_refused(shape, message):
    source = onnx.helper.make_tensor_value_info("x", 1, shape)
    target = onnx.helper.make_tensor_value_info("y", 1, None)
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [source], [target])
    with pytest.raises(errors.ExportError, match=message):
        codegen.source_of(onnx.helper.make_model(graph), "net")


@pytest.mark.parametrize("content", ["{not JSON", '"text"', "3", '[1, "a"]'])
def test_metadata_that_is_not_what_we_write_is_refused(content):
    source = onnx.helper.make_tensor_value_info("x", 1, ["B", 3])
    target = onnx.helper.make_tensor_value_info("y", 1, None)
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [source], [target])
    model = onnx.helper.make_model(graph, producer_name="nttzoo")
    entry = model.metadata_props.add()
    entry.key, entry.value = "mean", content
    with pytest.raises(errors.ExportError, match="metadata 'mean'"):
        codegen.source_of(model, "net")


def test_compile_checks_itself_once(tmp_path, monkeypatch):
    source = onnx.helper.make_tensor_value_info("x", 1, ["B", 5])
    target = onnx.helper.make_tensor_value_info("y", 1, None)
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [source], [target])
    onnx.save(
        onnx.helper.make_model(graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)]),
        tmp_path / "m.onnx",
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    asked = []

    def wrong(proto, inputs):
        asked.append(len(inputs))
        return np.zeros_like(inputs)

    monkeypatch.setattr(codegen.selfcheck, "outputs_of_graph", wrong)
    with pytest.raises(errors.ExportError, match="bug in nttzoo"):
        codegen.compile(tmp_path / "m.onnx")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    codegen.compile(tmp_path / "m.onnx")
    monkeypatch.setattr(codegen.selfcheck, "outputs_of_graph", wrong)
    codegen.compile(tmp_path / "m.onnx")  # it was right, and is not compared again
    assert len(asked) == 1
