"""What publishing stores for the gallery: tangent kernels, curves beside a random mask, its weights."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nttzoo import architectures, data, nn, zoo
from nttzoo._util import files
from nttzoo.errors import FileError
from nttzoo.experiments import publish
from nttzoo.sparsity import masks
from nttzoo.zoo import pictures

NAME = "lenet300-mnist-1pct-layerwise"


@pytest.fixture
def home(tmp_path):
    """A zoo of one entry, whose training took two epochs, without pictures."""
    for kind in ("models", "checkpoints"):
        shutil.copytree(zoo.homes()[0] / kind / NAME, tmp_path / kind / NAME)
    path = tmp_path / "models" / NAME / "metrics.json"
    metrics = files.read_json(path)
    metrics["train"]["epochs"] = 2
    files.write_text(path, files.to_json(metrics))
    (tmp_path / "models" / NAME / pictures.FILE).unlink(missing_ok=True)
    publish.regenerate(tmp_path)
    return tmp_path


def few(name):
    whole = data.load("mnist5k")
    parts = [array[::10] for split in (whole.train, whole.test) for array in (split.images, split.labels)]
    return data.from_arrays(*parts, name=name, classes=whole.classes)


def trace_kernel(model, images):
    """By the definition: products of whole Jacobians, summed over outputs."""
    graph, params, rest = nn.split_params(model)
    jacobians = jax.jacrev(lambda params: nn.merge_params(graph, params, rest)(images))(params)
    rows = [np.asarray(leaf).reshape(len(images), 10, -1) for leaf in jax.tree.leaves(jacobians)]
    return sum(np.einsum("nop,mop->nm", row, row) for row in rows)


@pytest.mark.slow
def test_pictures_are_stored_and_checked_like_all_else(home):
    assert pictures.read(NAME, home) == {}
    for _ in range(2):  # the second time replaces the first
        publish.add_pictures([NAME], few, home=home, train=True)
        assert zoo.verify(home) == [NAME]
    stored = pictures.read(NAME, home)
    assert len(stored["curves"]["student"]["test_accuracy"]) == len(stored["curves"]["random"]["test_accuracy"]) == 2
    labels = stored["kernels"]["labels"]
    assert labels == sorted(labels)
    dataset = few("mnist")
    shown = [i for label in range(10) for i in np.flatnonzero(dataset.test.labels == label)[:3]][:4]
    dense = architectures.create("lenet300", rngs=zoo.info(NAME, home).seed)
    dense.eval()
    expected = trace_kernel(dense, jnp.asarray(dataset.standardize(dataset.test.images[shown])))
    got = np.reshape(stored["kernels"]["teacher"], (len(labels), len(labels)))[:4, :4]
    np.testing.assert_allclose(got, expected, rtol=1e-3)
    place = home / "checkpoints" / NAME / pictures.RANDOM
    assert place.is_dir()
    victim = next(path for path in sorted(place.rglob("*")) if path.is_file())
    victim.write_bytes(victim.read_bytes() + b"x")
    with pytest.raises(FileError, match="changed"):
        zoo.verify(home)


def test_the_published_random_mask_has_the_density_of_its_entry(home, monkeypatch):
    name = "lenet300-mnist-1pct-global"
    model = pictures.load_random(name)
    own = masks.density_report(zoo.load(name)).total
    assert masks.density_report(model).total.kept == pytest.approx(own.kept, abs=3)
    digits = data.load("mnist5k").test
    hits = np.asarray(model(model.input_spec.standardize(digits.images)).argmax(-1)) == digits.labels
    assert hits.mean() == pytest.approx(pictures.read(name)["curves"]["random"]["test_accuracy"][-1], abs=0.05)
    shutil.rmtree(home / "checkpoints" / NAME / pictures.RANDOM, ignore_errors=True)
    publish.regenerate(home)
    monkeypatch.setenv("NTTZOO_HOME", str(home))
    assert pictures.load_random(NAME) is None
