import json
import shutil
import tomllib
from dataclasses import replace

import jax.numpy as jnp
import pytest
from zoo_entry import ASKED, NAME

import nttzoo
from nttzoo import cli, data, search, training, zoo
from nttzoo.errors import RunError, ZooError
from nttzoo.experiments import baselines, publish


@pytest.mark.slow
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


def test_regenerating_gives_the_same_bytes(home):
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    publish.regenerate(home)
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


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
