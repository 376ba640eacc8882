"""Folders for the Hugging Face Hub, read by its own library, by safetensors and by ONNX Runtime."""

import json

import numpy as np
import onnxruntime
import pytest
from huggingface_hub import ModelCard
from safetensors.numpy import load_file, save_file

import nttzoo
from nttzoo import cli, export
from nttzoo.errors import FileError, RunError, UnknownName

NAME = "lenet300-mnist-1pct-global"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return export.export_hub(NAME, tmp_path_factory.mktemp("hub") / "upload")


def test_a_folder_holds_what_the_hub_shows(folder):
    assert {path.name for path in folder.iterdir()} == {
        *("README.md", "config.json", "init.safetensors", "manifest.json", "model.onnx", "model.safetensors")
    }
    data = ModelCard.load(folder / "README.md").data
    assert (data.license, data.library_name, data.datasets) == ("apache-2.0", "nttzoo", ["mnist"])
    assert data.eval_results[0].metric_value == pytest.approx(
        nttzoo.info(NAME).metrics["chosen"]["test_accuracy"], abs=1e-4
    )
    assert f"# {NAME}" in (folder / "README.md").read_text()


@pytest.mark.parametrize("weights", ["init", "trained"])
def test_load_gives_the_published_network(folder, weights):
    ours, published = nttzoo.load(folder, weights=weights), nttzoo.load(NAME, weights=weights)
    for layer in ("linear1", "linear2", "linear3"):
        for part in ("kernel", "mask", "bias"):
            one, other = (np.asarray(getattr(getattr(m, layer), part)[...]) for m in (ours, published))
            np.testing.assert_array_equal(one, other)
    assert ours.input_spec == published.input_spec


def test_safetensors_and_onnx_agree(folder):
    arrays, x = load_file(folder / "model.safetensors"), np.random.default_rng(0).normal(size=(4, 28, 28, 1))
    hidden = x.reshape(4, -1)
    for layer in ("linear1", "linear2", "linear3"):  # the network by hand, from the file alone
        hidden = hidden @ arrays[f"{layer}.kernel"] + arrays[f"{layer}.bias"]
        hidden = np.maximum(hidden, 0) if layer != "linear3" else hidden
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {session.get_inputs()[0].name: x.astype(np.float32)})
    np.testing.assert_allclose(logits, hidden, rtol=1e-4, atol=1e-4)


def spoiled(arrays, how):
    if how == "truncated":
        return None
    if how == "weight outside of the mask":
        arrays["linear1.kernel"] = arrays["linear1.kernel"] + 1
    if how == "shape":
        arrays["linear1.mask"] = arrays["linear1.mask"][:-1]
    if how == "missing":
        del arrays["linear2.mask"]
    if how == "not finite":
        arrays["linear3.bias"] = arrays["linear3.bias"] * np.nan
    if how == "extra":
        arrays["linear4.bias"] = arrays["linear3.bias"]
    return arrays


@pytest.mark.parametrize(
    "how", ["truncated", "weight outside of the mask", "shape", "missing", "not finite", "extra", "architecture"]
)
def test_damaged_folders_are_refused(folder, tmp_path, how):
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    target = tmp_path / "model.safetensors"
    if how == "architecture":
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "architecture": "lenet5"}))
    elif (arrays := spoiled(load_file(target), how)) is None:
        target.write_bytes(target.read_bytes()[:-100])
    else:
        save_file(arrays, target)
    with pytest.raises(FileError, match=r"model\.safetensors"):
        nttzoo.load(tmp_path, weights="trained")


def test_the_command_line_writes_it_and_errors_leave_nothing(tmp_path, capsys):
    cli.main(["export", NAME, str(tmp_path / "up"), "--format", "hub"])
    assert str(tmp_path / "up") in capsys.readouterr().out
    with pytest.raises(UnknownName):
        export.export_hub("lenet", tmp_path / "no")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=r"notes\.txt"):
        export.export_hub(NAME, tmp_path / "own")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "up"]
