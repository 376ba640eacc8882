import json
import shutil
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import onnxruntime
import optax
import pytest
from flax import nnx
from huggingface_hub import ModelCard
from zoo_entry import ASKED, NAME

import nttzoo
from nttzoo import cli, data, training, zoo
from nttzoo.errors import NttzooError, OptionError, RunError, UnknownName, ZooError
from nttzoo.experiments import publish
from nttzoo.nn import masked_layers
from nttzoo.sparsity import masks


def test_names_can_be_listed_and_filtered(home):
    ours = [NAME, "lenet300-mnist5k-5.5pct-global"]
    assert set(nttzoo.list_models()) >= set(ours)
    assert nttzoo.list_models("*-mnist5k-*") == ours
    assert nttzoo.list_models("*-mnist5k-*", density=0.02) == [NAME]
    assert nttzoo.list_models("*-mnist5k-*", scheme="layerwise") == []
    assert nttzoo.list_models(dataset="mnist5k") == ours


def test_a_loaded_network_is_the_searchs_student(home, made):
    model = nttzoo.load(NAME)
    own = nttzoo.load(made[1] / ASKED.folder(ASKED.config("ntt", 0)) / "students" / "2pct-global")
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 28, 28, 1)), jnp.float32)
    np.testing.assert_array_equal(model(x), own(x))
    assert masks.density_report(model).total.kept == round(0.02 * 266_200)
    entry = nttzoo.info(NAME)
    assert [layer["kept"] for layer in entry.layers] == [x.kept for x in masks.density_report(model).layers]
    assert (entry.architecture, entry.dataset, entry.density, entry.scheme) == ("lenet300", "mnist5k", 0.02, "global")


def test_the_onnx_file_has_the_accuracy_of_the_card(home):
    session = onnxruntime.InferenceSession(home / "models" / NAME / "model.onnx", providers=["CPUExecutionProvider"])
    digits = data.load("mnist5k")
    (logits,) = session.run(None, {"images": np.asarray(digits.standardize(digits.test.images))})
    accuracy = float((logits.argmax(1) == digits.test.labels).mean())
    assert accuracy == pytest.approx(nttzoo.info(NAME).metrics["chosen"]["test_accuracy"], abs=0.002)
    assert session.get_modelmeta().custom_metadata_map["name"] == NAME


def test_load_check(home, capsys):
    cli.main(["load-check", NAME, "--json"])
    (check,) = json.loads(capsys.readouterr().out)
    assert check["name"] == NAME
    assert check["density"] == pytest.approx(0.02, abs=1e-5)
    cli.main(["load-check", NAME])
    assert "loads in" in capsys.readouterr().out
    metrics = home / "models" / NAME / "metrics.json"
    content = json.loads(metrics.read_text())
    content["layers"][0]["kept"] += 1
    metrics.write_text(json.dumps(content))
    publish.regenerate(home)
    with pytest.raises(ZooError, match="weights per layer"):
        zoo.load_check(NAME)


def test_export_from_the_command_line(home, tmp_path, capsys):
    cli.main(["export", NAME, str(tmp_path / "m.onnx"), "--layout", "NCHW", "--batch", "2", "--dense"])
    assert "outputs in ONNX Runtime differ" in capsys.readouterr().out
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == [2, 1, 28, 28]


def test_trained_weights_have_the_accuracy_of_the_card(home):
    dataset = data.load("mnist5k")
    model = nttzoo.load(NAME, weights="trained")
    accuracy = training.accuracy(model, dataset)
    assert accuracy == nttzoo.info(NAME).metrics["chosen"]["test_accuracy"]
    parsed = ModelCard.load(home / "models" / NAME / "README.md")
    (result,) = parsed.data.eval_results
    assert result.metric_value == pytest.approx(accuracy, abs=1e-4)
    assert parsed.data.license == "apache-2.0"
    assert parsed.data.datasets == ["mnist5k"]
    assert f"{100 * accuracy:.2f} %" in parsed.text


def test_a_loaded_network_knows_its_inputs_and_trains(home):
    model, dataset = nttzoo.load(NAME), data.load("mnist5k")
    x = model.input_spec.standardize(dataset.train.images[:64])
    assert abs(float(x.mean())) < 0.1
    assert model.input_spec.classes == tuple("0123456789")
    y = jnp.asarray(dataset.train.labels[:64])
    before = {path: np.asarray(layer.mask[...]) for path, layer in masked_layers(model).items()}
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    @nnx.jit
    def step(model, optimizer):
        loss = lambda m: optax.softmax_cross_entropy_with_integer_labels(m(x), y).mean()  # noqa: E731
        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    losses = [float(step(model, optimizer)) for _ in range(20)]
    assert losses[-1] < losses[0]
    for path, layer in masked_layers(model).items():
        np.testing.assert_array_equal(layer.mask[...], before[path])
        assert not np.asarray(layer.masked_kernel())[~before[path]].any()


@pytest.mark.parametrize("name", ["../home/models", "/etc/passwd", "lenet300-mnist5k-2pct-globl", "", ".", None])
def test_names_are_looked_up_and_never_joined_to_paths(home, name):
    with pytest.raises(UnknownName, match="no published network"):
        nttzoo.load(name)


@pytest.mark.slow
def test_every_changed_byte_is_caught_with_the_files_name(home):
    files = zoo.files_of(home, NAME)
    assert len(files) > 10
    for path in [*files.values(), home / "checkpoints" / NAME / "manifest.json"]:
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(ZooError, match=path.name.replace(".", r"\.")):
            nttzoo.load(NAME)
        path.write_bytes(content[:-1])
        with pytest.raises(ZooError, match=path.name.replace(".", r"\.")):
            zoo.verify()
        path.write_bytes(content)
    assert NAME in zoo.verify()


def test_extra_files_links_and_missing_files_are_refused(home):
    folder = home / "checkpoints" / NAME
    (folder / "init" / "more").write_text("x")
    with pytest.raises(ZooError, match=r"more does not belong to"):
        nttzoo.load(NAME)
    (folder / "init" / "more").unlink()
    target = folder / "init" / "_METADATA"
    target.rename(home / "elsewhere")
    with pytest.raises(ZooError, match=r"_METADATA of .* is missing\. Copy or publish the entry again"):
        nttzoo.load(NAME)
    target.symlink_to(home / "elsewhere")
    with pytest.raises(ZooError, match=r"_METADATA is a symbolic link"):
        nttzoo.load(NAME)


def test_an_entry_under_another_name_is_refused(home):
    path = home / "models" / "index.json"
    index = json.loads(path.read_text())
    for kind in ("models", "checkpoints"):
        (home / kind / NAME).rename(home / kind / "other")
    index["entries"]["other"] = index["entries"].pop(NAME)
    path.write_text(json.dumps(index))
    with pytest.raises(ZooError, match=f"is that of '{NAME}', not of 'other'"):
        nttzoo.load("other")


def test_a_home_without_a_zoo_is_refused(home, monkeypatch, tmp_path):
    (home / "models" / "index.json").write_text("[]")
    with pytest.raises(ZooError, match=r"index\.json is not the index of a zoo"):
        nttzoo.list_models()
    monkeypatch.setenv("NTTZOO_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ZooError, match=r"NTTZOO_HOME is .*nowhere, which has no models/index\.json"):
        nttzoo.list_models()


def test_an_entry_of_ones_own_goes_before_the_packages_and_both_are_verified(home, monkeypatch):
    monkeypatch.setattr("nttzoo.zoo.index.homes", lambda: [home, home])
    assert zoo.verify().count(NAME) == 2


def test_an_index_of_a_newer_version_is_refused(home):
    path = home / "models" / "index.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(ZooError, match=r"format 99; this version of nttzoo reads 1\. Update nttzoo"):
        nttzoo.list_models()


def test_the_command_line_reads_the_zoo(home, capsys):
    cli.main(["list", "*-mnist5k-*", "--json"])
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert listed[NAME]["density"] == 0.02
    assert 0 <= listed[NAME]["test_accuracy"] <= 1
    cli.main(["list", "*-mnist5k-*"])
    assert "50.0x" in capsys.readouterr().out
    cli.main(["info", NAME])
    assert capsys.readouterr().out.startswith("---\nlicense")
    cli.main(["info", NAME, "--json"])
    assert json.loads(capsys.readouterr().out)["name"] == NAME
    cli.main(["verify"])
    assert "networks are intact" in capsys.readouterr().out


def test_wrong_requests(home, made):
    with pytest.raises(OptionError, match="'init', 'trained'"):
        nttzoo.load(NAME, weights="final")
    with pytest.raises(RunError, match=r"holds 2 students: 2pct-global, 5\.5pct-global\. Give"):
        nttzoo.load(made[1] / ASKED.folder(ASKED.config("ntt", 0)))
    with pytest.raises(NttzooError):
        nttzoo.load(Path("nowhere"))


def test_a_folder_of_ones_own_knows_its_inputs_and_says_if_it_is_not_trained(home, made, tmp_path):
    student = made[1] / ASKED.folder(ASKED.config("ntt", 0)) / "students" / "2pct-global"
    for weights in ("init", "trained"):
        assert nttzoo.load(student, weights=weights).input_spec == nttzoo.load(NAME).input_spec
    shutil.copytree(student, tmp_path / "student", ignore=shutil.ignore_patterns("trained"))
    with pytest.raises(RunError, match="is not trained yet: `nttzoo train --start"):
        nttzoo.load(tmp_path / "student", weights="trained")
    about = json.loads((tmp_path / "student" / "model.json").read_text())
    del about["mean"]
    (tmp_path / "student" / "model.json").write_text(json.dumps(about))
    with pytest.raises(RunError, match="does not tell 'mean'"):
        nttzoo.load(tmp_path / "student")
