import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import nttzoo
from nttzoo import data, nn, search
from nttzoo.errors import FileError, ModelError, OptionError, RunError
from nttzoo.search.recipes import Recipe


class Net(nnx.Module):
    """A network that no registry knows, with a norm and a layer that stays dense."""

    def __init__(self, width=7, seed=0):
        rngs = nnx.Rngs(seed)
        self.first = nnx.Linear(5, width, rngs=rngs)
        self.norm = nnx.BatchNorm(width, rngs=rngs)
        self.head = nnx.Linear(width, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(nnx.relu(self.norm(self.first(x))))


X = jax.random.normal(jax.random.key(1), (4, 5))


def pruned(seed=0, **options):
    model = nttzoo.prune(nttzoo.sparsify(Net(seed=seed), **options), "magnitude", density=0.4)
    model(X + 1)  # moves the statistics of the norm
    model.eval()
    return model


def same_outputs(one, other):
    np.testing.assert_array_equal(one(X), other(X))


@pytest.mark.parametrize("options", [{}, {"exclude": ["head"]}])
def test_a_model_of_ones_own_comes_back(tmp_path, options):
    model = pruned(**options)
    nttzoo.save(model, tmp_path / "mine")
    back = nttzoo.load(tmp_path / "mine", factory=lambda: Net(seed=9))
    same_outputs(model, back)
    assert nn.masked_layers(back).keys() == nn.masked_layers(model).keys()
    for path, layer in nn.masked_layers(model).items():
        np.testing.assert_array_equal(layer.mask[...], nn.masked_layers(back)[path].mask[...])
    # A factory may give the masks itself, and a string will do for the folder.
    same_outputs(model, nttzoo.load(str(tmp_path / "mine"), factory=lambda: nttzoo.sparsify(Net(seed=9), **options)))


def test_a_registered_architecture_needs_no_factory(tmp_path):
    model = nttzoo.prune(nttzoo.create("lenet300", input_shape=(8, 8, 1), rngs=0), "magnitude", density=0.1)
    nttzoo.save(model, tmp_path / "mine")
    x = jnp.ones((2, 8, 8, 1))
    np.testing.assert_array_equal(nttzoo.load(tmp_path / "mine")(x), model(x))
    spec = data.InputSpec((8, 8, 1), (0.5,), (0.1,), tuple("abcdefghij"))
    nttzoo.save(model, tmp_path / "mine", input_spec=spec)  # replaces it
    back = nttzoo.load(tmp_path / "mine")
    assert back.input_spec == spec
    np.testing.assert_array_equal(back(x), model(x))


def test_what_a_search_found_can_be_saved_loaded_trained_and_exported(tmp_path):
    rng = np.random.default_rng(0)
    recipe = Recipe(name="own", epochs=1, batch_size=8, learning_rate=1e-3, kernel_weight=1e-3, weight_decay=0.0)
    images = rng.normal(size=(128, 5)).astype(np.float32)
    teacher = nttzoo.sparsify(
        nnx.Sequential(nnx.Linear(5, 7, rngs=nnx.Rngs(0)), nnx.relu, nnx.Linear(7, 3, rngs=nnx.Rngs(1)))
    )
    found = search.transfer(teacher, images, search.SearchConfig(densities=(0.5,), recipe=recipe), progress=False)
    model = found.students[0].model
    nttzoo.save(model, tmp_path / "found")

    def make():
        return nnx.Sequential(nnx.Linear(5, 7, rngs=nnx.Rngs(5)), nnx.relu, nnx.Linear(7, 3, rngs=nnx.Rngs(6)))

    back = nttzoo.load(tmp_path / "found", factory=make)
    same_outputs(model, back)
    exported = nttzoo.export_onnx(back, tmp_path / "found.onnx", input_shape=(5,))
    assert exported.difference < 1e-5
    assert len(str(found).splitlines()) < 24


@pytest.mark.parametrize(
    ("factory", "error", "says"),
    [
        (None, OptionError, "class 'Net', which is not a registered architecture: give load"),
        (3, OptionError, "factory is 3; it must be a function"),
        (dict, OptionError, "it must make an NNX model"),
        (lambda: Net(width=6), ModelError, "'first.bias' is float32 \\[7\\] in the folder and float32 \\[6\\]"),
        (lambda: nnx.Linear(5, 3, rngs=nnx.Rngs(0)), ModelError, "holds another network than Linear"),
    ],
)
def test_another_factory_is_refused(tmp_path, factory, error, says):
    nttzoo.save(pruned(), tmp_path / "mine")
    with pytest.raises(error, match=says):
        nttzoo.load(tmp_path / "mine", factory=factory)


def test_a_published_network_needs_no_factory():
    with pytest.raises(OptionError, match="needs no factory"):
        nttzoo.load("lenet300-mnist-1pct-global", factory=Net)


def test_what_cannot_be_saved_is_refused(tmp_path):
    with pytest.raises(ModelError, match="no prunable layers"):
        nttzoo.save(Net(), tmp_path / "mine")
    with pytest.raises(ModelError, match=r"model is \{\}; it must be an NNX model"):
        nttzoo.save({}, tmp_path / "mine")
    with pytest.raises(OptionError, match="folder is 3"):
        nttzoo.save(pruned(), 3)
    assert not (tmp_path / "mine").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="was not written by nttzoo"):
        nttzoo.save(pruned(), tmp_path / "other")


def test_a_changed_file_is_noticed(tmp_path):
    nttzoo.save(pruned(), tmp_path / "mine")
    path: Path = tmp_path / "mine" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"class": "Other"}))
    with pytest.raises(FileError, match=r"model\.json of 'mine' was changed"):
        nttzoo.load(tmp_path / "mine", factory=Net)
