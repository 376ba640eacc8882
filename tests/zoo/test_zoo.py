import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import optax
import pytest
from flax import nnx
from huggingface_hub import ModelCard

import nttzoo
from nttzoo import cli, data, search, training, zoo
from nttzoo.errors import NttzooError, OptionError, RunError, UnknownName, ZooError
from nttzoo.experiments import baselines, comparison, publish
from nttzoo.nn import masked_layers
from nttzoo.sparsity import masks
from nttzoo.zoo import card

NAME = "lenet300-mnist5k-2pct-global"
ASKED = comparison.Comparison(
    model="lenet300",
    data="mnist5k",
    methods=("ntt", "random", "dense"),
    densities=(0.02, 0.055),
    schemes=("global",),
    seeds=(0,),
    train_epochs=1,
    change={"epochs": 1, "mask_every": 20},
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(home of a small zoo, its runs): made by a real search and training."""
    folder = tmp_path_factory.mktemp("zoo")
    dataset = data.load("mnist5k")
    comparison.run(ASKED, dataset, out=folder / "c.json", runs=folder / "runs")
    publish.publish(folder / "c.json", dataset, runs=folder / "runs", home=folder / "home")
    return folder / "home", folder / "runs"


@pytest.fixture
def home(made, tmp_path, monkeypatch):
    """A copy that may be damaged."""
    shutil.copytree(made[0], tmp_path / "home")
    monkeypatch.setenv("NTTZOO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


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


def test_measured_times_are_entered(home, tmp_path, capsys):
    times = {b: {t: {"onnxruntime": 0.02, "nttzoo_c": 0.005} for t in ("1", "2")} for b in ("1", "64")}
    cases = [
        {"name": NAME, "architecture": "lenet300", "density": 0.02, "milliseconds": times},
        {"name": "lenet300 dense", "architecture": "lenet300", "density": 1.0, "milliseconds": times},
    ]
    content = {"cases": cases, "machine": {"processor": "An abacus"}, "runtimes": {}}
    (tmp_path / "r.json").write_text(json.dumps(content))
    cli.main(["publish", "--runtimes", str(tmp_path / "r.json"), "--home", str(home)])
    assert f"{NAME}: measured times entered" in capsys.readouterr().out
    text = (home / "models" / NAME / "README.md").read_text()
    assert "| nttzoo's C | 5.0 | 5.0 | 0.1 | 0.1 |" in text
    assert "An abacus" in text
    assert NAME in zoo.verify()  # manifest and index know the new card


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


def test_regenerating_gives_the_same_bytes(home):
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    publish.regenerate(home)
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


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


def test_a_student_trained_on_other_images_takes_those(runs):
    student = runs / ASKED.folder(ASKED.config("ntt", 0)) / "students" / "2pct-global"
    dataset = data.load("mnist5k")
    darker = replace(dataset, train=data.Labeled(dataset.train.images // 2, dataset.train.labels))
    darker = replace(darker, name="darker")
    before = (student / "trained" / "model.json").read_text()
    baselines.train_student(student, darker, training.TrainConfig(epochs=0, progress=False))
    assert (student / "trained" / "model.json").read_text() == before  # nothing was trained
    baselines.train_student(student, darker, training.TrainConfig(epochs=1, progress=False))
    about = json.loads((student / "trained" / "model.json").read_text())
    assert about.items() >= {"data": "darker", "searched_on": "mnist5k", "train_epochs": 1}.items()
    assert nttzoo.load(student).input_spec == dataset.input_spec
    assert nttzoo.load(student, weights="trained").input_spec == darker.input_spec != dataset.input_spec


def test_the_recipe_tells_all_of_search_and_training(home):
    recipe = tomllib.loads((home / "models" / NAME / "recipe.toml").read_text())
    metrics = nttzoo.info(NAME).metrics
    assert recipe["recipe"] == {key: value for key, value in metrics["recipe"].items() if value is not None}
    assert recipe["train"] == metrics["train"]
    expected = {"epochs": 1, "batch_size": 64, "learning_rate": 1e-3, "optimizer": "adam", "loss": "cross_entropy"}
    assert recipe["train"] == {**expected, "dropout": True}


def published_again(made, tmp_path, home):
    dataset = data.load("mnist5k")
    return publish.publish(tmp_path / "c.json", dataset, runs=tmp_path / "runs", home=home)


@pytest.fixture
def runs(made, tmp_path):
    """A copy of the comparison and its runs that may be changed."""
    shutil.copytree(made[1], tmp_path / "runs")
    shutil.copy(made[0].parent / "c.json", tmp_path / "c.json")
    return tmp_path / "runs"


def test_an_unfinished_comparison_is_not_published(made, runs, tmp_path):
    content = json.loads((tmp_path / "c.json").read_text())
    del content["cases"][-1]
    (tmp_path / "c.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match=r"not finished: 1 networks .* the first is \{'method': 'dense'"):
        published_again(made, tmp_path, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_weights_of_another_training_are_not_published(made, runs, tmp_path):
    student = runs / ASKED.folder(ASKED.config("ntt", 0)) / "students" / "2pct-global"
    baselines.train_student(student, data.load("mnist5k"), training.TrainConfig(epochs=2, progress=False))
    with pytest.raises(RunError, match=r"another training: .*'train_epochs': 2\} there"):
        published_again(made, tmp_path, tmp_path / "new")
    shutil.rmtree(student / "trained")
    with pytest.raises(RunError, match=r"trained/model\.json cannot be read"):
        published_again(made, tmp_path, tmp_path / "new")


def test_publishing_does_not_bless_what_was_tampered_with(home, made, runs, tmp_path):
    other = home / "checkpoints" / "lenet300-mnist5k-5.5pct-global" / "init" / "_METADATA"
    index = (home / "models" / "index.json").read_bytes()
    other.write_bytes(other.read_bytes() + b" ")
    (tmp_path / "r.json").write_text(json.dumps({"cases": [], "machine": {"processor": "x"}, "runtimes": {}}))
    with pytest.raises(ZooError, match=r"_METADATA .* was changed"):
        publish.add_runtimes(tmp_path / "r.json", home)
    assert (home / "models" / "index.json").read_bytes() == index
    # An entry that is published again is written again, whatever state it was in.
    assert published_again(made, tmp_path, home) == [NAME, "lenet300-mnist5k-5.5pct-global"]
    assert NAME in zoo.verify(home)
    assert not list(home.glob(".publishing-*"))


def test_a_network_without_a_path_from_input_to_output_is_not_published(made, tmp_path):
    shutil.copytree(made[1], tmp_path / "runs")
    student = tmp_path / "runs" / ASKED.folder(ASKED.config("ntt", 0)) / "students" / "2pct-global"
    model, about = search.load_student(student)
    model.linear3.mask[...] = jnp.zeros_like(model.linear3.mask[...])
    search.save_student(student, model, about)
    with pytest.raises(RunError, match="no path leads from its inputs"):
        publish.publish(made[0].parent / "c.json", data.load("mnist5k"), runs=tmp_path / "runs", home=tmp_path / "home")
    assert not (tmp_path / "home").exists()


# The entries that come with the package.


@pytest.mark.parametrize("name", zoo.list_models())
def test_each_published_entry_loads_is_at_its_density_and_matches_its_card(name):
    entry = nttzoo.info(name)
    for weights in ("init", "trained"):
        model = nttzoo.load(name, weights=weights)
        report = masks.density_report(model)
        counted = report.layers if entry.scheme == "layerwise" else [report.total]
        assert [x.kept for x in counted] == [round(entry.density * x.size) for x in counted]
        assert [x.kept for x in report.layers] == [layer["kept"] for layer in entry.layers]
        assert bool(jnp.isfinite(model(jnp.ones((1, *model.input_spec.shape)))).all())
    home = next(h for h in zoo.homes() if (h / "models" / name).is_dir())
    session = onnxruntime.InferenceSession(home / "models" / name / "model.onnx", providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).normal(size=(4, *model.input_spec.shape)).astype(np.float32)
    expected = np.asarray(model(jnp.asarray(x)))
    assert np.abs(session.run(None, {"images": x})[0] - expected).max() <= 1e-5 * np.abs(expected).max()
    assert (home / "models" / name / "README.md").read_text() == card.card(entry.metrics)
    assert name == f"{entry.architecture}-{entry.dataset}-{100 * entry.density:.6g}pct-{entry.scheme}"


def test_the_published_index_and_card_are_those_of_the_entries(tmp_path):
    home = zoo.homes()[0]
    for part in ("models", "checkpoints"):
        shutil.copytree(home / part, tmp_path / part)
    publish.regenerate(tmp_path)
    for path in ("models/index.json", "MODEL_CARD.md"):
        assert (tmp_path / path).read_bytes() == (home / path).read_bytes()
    jax.clear_caches()
