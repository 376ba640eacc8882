"""`fit` in compiled C and in JAX: the same training; and trainings that are resumed after a kill."""

from __future__ import annotations

import re
import shutil
import time

import numpy as np
import optax
import pytest
from flax import nnx

from nttzoo import nn
from nttzoo._util import libraries
from nttzoo.architectures import create
from nttzoo.data import from_arrays
from nttzoo.errors import ExportError, FileError, RunError, ShapeError, TrainingError
from nttzoo.sparsity.pruning import prune
from nttzoo.training import TrainConfig, engines, fit, loop, timing

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 260)
    images = rng.integers(0, 90, (260, 6, 6, 2)) + 50 * labels[:, None, None, None]
    images, labels = images.astype(np.uint8), labels.astype(np.uint8)
    return from_arrays(images[:200], labels[:200], images[200:], labels[200:], name="blobs")


def network(density=0.2):
    model = create("lenet300", num_classes=3, input_shape=(6, 6, 2), rngs=0)
    return prune(model, "random", density=density, rngs=1)


def config(**options):
    return TrainConfig(**{"epochs": 4, "batch_size": 16, "progress": False} | options)


def weights(model):
    return np.concatenate([np.ravel(v[...]) for _, v in nnx.to_flat_state(nnx.state(model, nnx.Param))])


@pytest.mark.parametrize(
    "options", [{}, {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 1e-3, "loss": "squared"}]
)
def test_both_engines_train_alike(data, options):
    models = {engine: network() for engine in ("c", "jax")}
    histories = {engine: fit(model, data, config(engine=engine, **options)) for engine, model in models.items()}
    kept = np.concatenate([np.ravel(layer.mask[...]) for layer in nn.masked_layers(models["c"]).values()])
    assert kept.mean() == pytest.approx(0.2, abs=0.01)
    x = data.standardize(data.test.images)
    np.testing.assert_allclose(models["c"](x), models["jax"](x), atol=2e-4)
    for name in ("train_loss", "train_accuracy", "validation_accuracy", "test_accuracy"):
        np.testing.assert_allclose(getattr(histories["c"], name), getattr(histories["jax"], name), atol=1e-4)
    assert [histories[engine].engine for engine in ("c", "jax")] == ["c", "jax"]


class Unmasked(nnx.Module):
    def __init__(self):
        self.layer = nnx.Linear(72, 3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.layer(x.reshape(x.shape[0], -1))


def test_auto_takes_c_for_sparse_networks_and_says_why_not_otherwise(data):
    assert fit(network(), data, config(epochs=1)).engine == "c"
    cases = {
        "dense": (Unmasked(), {}, "the network is dense"),
        "own": (network(), {"optimizer": optax.lion(1e-3)}, "optimizer is one of your own"),
    }
    for model, options, why in cases.values():
        history = fit(model, data, config(epochs=1, **options))
        assert history.engine == "jax"
        assert why in history.engine_note


@pytest.fixture
def slow(tmp_path, monkeypatch):
    """Slows the steps of one engine down, and counts those of both; libraries and times are in a folder of the test."""
    monkeypatch.setattr(libraries, "cache_folder", lambda: tmp_path / "libraries")
    counted = {"c": 0, "jax": 0}

    def slowed(trainer, delay):
        run = trainer.run

        def slow_run(self, begin, end):
            counted[self.engine] += 1
            time.sleep(delay * (end - begin))
            run(self, begin, end)

        monkeypatch.setattr(trainer, "run", slow_run)

    def slow(engine):
        for trainer in (engines.CTrainer, engines.JaxTrainer):
            slowed(trainer, 0.02 if trainer.engine == engine else 0)
        return counted

    return slow


@pytest.mark.parametrize(("slower", "faster"), [("c", "jax"), ("jax", "c")])
def test_between_sparse_and_dense_the_faster_engine_trains(data, slow, slower, faster):
    measured, model = slow(slower), network(0.6)
    history = fit(model, data, config(epochs=2))
    assert history.engine == faster
    times = [float(time) for time in re.findall(r"[\d.]+(?= (?:ms )?in (?:C|JAX))", history.engine_note)]
    assert len(times) == 2
    assert (times[0] < times[1]) == (faster == "c")
    # Having been measured leaves no trace in the training.
    alone = network(0.6)
    expected = fit(alone, data, config(epochs=2, engine=faster))
    np.testing.assert_array_equal(weights(model), weights(alone))
    assert history.train_loss == expected.train_loss
    assert min(measured.values()) > 0


def test_what_was_measured_is_kept_for_such_networks(data, slow, tmp_path):
    measured = slow("c")
    note = fit(network(0.6), data, config(epochs=1)).engine_note
    (kept,) = (tmp_path / "libraries").glob("engine-*.json")

    def steps_in_c(density, **options):
        before = measured["c"]
        history = fit(network(density), data, config(epochs=1, **options))
        return measured["c"] - before, history.engine, history.engine_note

    assert steps_in_c(0.61) == (0, "jax", note)  # the same class of densities
    assert steps_in_c(0.8)[0] > 0
    assert steps_in_c(0.6, batch_size=20)[0] > 0
    for damage in ("{", '{"c": -1, "jax": 1}', '{"c": 1}', '{"c": "fast", "jax": 1}'):
        kept.write_text(damage)
        taken, engine, _ = steps_in_c(0.6)
        assert (taken > 0, engine) == (True, "jax")
    kept.write_text('{"c": 1.5, "jax": 3}')
    assert steps_in_c(0.6)[1:] == ("c", "a step was measured to take 1.5 ms in C and 3 in JAX")


def test_times_that_cannot_be_kept_are_measured_again(data, slow, monkeypatch):
    def full(*_):
        raise RunError("cannot write: no space left.")

    measured = slow("c")
    monkeypatch.setattr(timing.files, "write_text", full)
    for _ in range(2):
        before = measured["c"]
        assert fit(network(0.6), data, config(epochs=1)).engine == "jax"
        assert measured["c"] > before


def test_a_resumed_training_keeps_its_engine(data, slow, tmp_path, monkeypatch):
    slow("jax")
    first = fit(network(0.6), data, config(epochs=2), checkpoint=tmp_path / "state")
    assert first.engine == "c"
    (kept,) = (tmp_path / "libraries").glob("engine-*.json")
    kept.write_text('{"c": 9, "jax": 1}')  # such networks now train in JAX
    assert fit(network(0.6), data, config(epochs=2)).engine == "jax"
    resumed, whole = network(0.6), network(0.6)
    history = fit(resumed, data, config(epochs=4), checkpoint=tmp_path / "state")
    assert (history.engine, history.engine_note) == (first.engine, first.engine_note)
    fit(whole, data, config(epochs=4, engine="c"))
    np.testing.assert_array_equal(weights(resumed), weights(whole))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(TrainingError, match="trained in C, which is not possible here: there is no C compiler"):
        fit(network(0.6), data, config(epochs=5), checkpoint=tmp_path / "state")


def test_a_loss_that_is_not_finite_while_measuring_is_one_of_the_training(data, slow):
    slow("c")
    with pytest.raises(TrainingError, match=r"epoch 1: .*The model holds the weights of epoch 0"):
        fit(network(0.6), data, config(epochs=1, optimizer="sgd", learning_rate=1e30))


def test_without_a_compiler_jax_trains(data, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    history = fit(network(), data, config(epochs=1))
    assert history.engine == "jax"
    assert "there is no C compiler" in history.engine_note
    with pytest.raises(ExportError, match="there is no C compiler"):
        fit(network(), data, config(epochs=1, engine="c"))


@pytest.mark.parametrize("engine", ["c", "jax"])
def test_a_killed_training_goes_on_bit_for_bit(data, engine, tmp_path, monkeypatch):
    whole, resumed = network(), network()
    expected = fit(whole, data, config(engine=engine))
    monkeypatch.setattr(loop.Checkpoint.__init__.__globals__["time"], "monotonic", iter(range(0, 10**6, 100)).__next__)
    make = engines.make

    def dying(*given):
        trainer, note = make(*given)
        begin, epochs = trainer.begin_epoch, []

        def begin_epoch(order):
            epochs.append(1)
            if len(epochs) == 3:
                raise KeyboardInterrupt
            begin(order)

        trainer.begin_epoch = begin_epoch
        return trainer, note

    monkeypatch.setattr(engines, "make", dying)
    with pytest.raises(KeyboardInterrupt):
        fit(resumed, data, config(engine=engine), checkpoint=tmp_path / "state")
    monkeypatch.setattr(engines, "make", make)
    again = network()
    history = fit(again, data, config(engine=engine), checkpoint=tmp_path / "state")
    np.testing.assert_array_equal(weights(again), weights(whole))
    assert history.train_loss == expected.train_loss
    assert history.test_accuracy == expected.test_accuracy
    finished = network()
    assert fit(finished, data, config(engine=engine), checkpoint=tmp_path / "state").seconds == history.seconds
    np.testing.assert_array_equal(weights(finished), weights(whole))


def test_a_checkpoint_of_another_training_or_a_damaged_one_is_refused(data, tmp_path):
    folder = tmp_path / "state"
    fit(network(), data, config(engine="c"), checkpoint=folder)
    with pytest.raises(TrainingError, match="holds another training: its config"):
        fit(network(), data, config(engine="c", learning_rate=2e-3), checkpoint=folder)
    with pytest.raises(TrainingError, match="holds another training: its start"):
        fit(network(0.1), data, config(engine="c"), checkpoint=folder)
    with pytest.raises(TrainingError, match="was trained with engine 'c', this would be 'jax'"):
        fit(network(), data, config(engine="jax"), checkpoint=folder)
    arrays = folder / "arrays.npz"
    content = bytearray(arrays.read_bytes())
    content[200] ^= 1
    arrays.write_bytes(content)
    with pytest.raises(FileError, match=r"arrays\.npz"):
        fit(network(), data, config(engine="c"), checkpoint=folder)


@pytest.mark.slow
def test_without_dropout_both_engines_train_alike(data):
    models = {engine: create("conv4", num_classes=3, input_shape=(16, 16, 2), rngs=0) for engine in ("c", "jax")}
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 2)).astype(np.uint8)
    labels = np.arange(40) % 3
    few = from_arrays(images[:32], labels[:32], images[32:], labels[32:], name="noise")
    histories = {}
    for engine, model in models.items():
        prune(model, "random", density=0.05, rngs=1)
        histories[engine] = fit(model, few, config(epochs=1, engine=engine, dropout=False, validation=0.0))
    assert histories["c"].train_loss == pytest.approx(histories["jax"].train_loss, abs=1e-5)
    dropped = create("conv4", num_classes=3, input_shape=(16, 16, 2), rngs=0)
    prune(dropped, "random", density=0.05, rngs=1)
    assert fit(dropped, few, config(epochs=1, engine="c", validation=0.0)).train_loss != histories["c"].train_loss


def test_images_that_are_no_bytes_train_alike():
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(120, 4, 4, 1)).astype(np.float32), rng.integers(0, 3, 120)
    floats = from_arrays(images[:90], labels[:90], images[90:], labels[90:], name="noise")
    models = {}
    for engine in ("c", "jax"):
        models[engine] = create("lenet300", num_classes=3, input_shape=(4, 4, 1), rngs=0)
        prune(models[engine], "random", density=0.2, rngs=1)
        fit(models[engine], floats, config(engine=engine))
    x = floats.standardize(images)
    np.testing.assert_allclose(models["c"](x), models["jax"](x), atol=2e-4)


def test_a_cache_that_cannot_be_written_leaves_training_to_jax(data, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(libraries, "cache_folder", lambda: tmp_path / "file" / "libraries")
    history = fit(network(), data, config(epochs=1))
    assert history.engine == "jax"
    assert "cannot make the folder" in history.engine_note


def test_wrong_data_are_no_reason_to_train_in_jax(data):
    class Plain(nnx.Module):
        def __init__(self):
            self.layer = nn.Linear(72, 2, rngs=nnx.Rngs(0))  # one class too few

        def __call__(self, x):
            return self.layer(x.reshape(x.shape[0], -1))

    model = Plain()
    model.layer.mask[...] = model.layer.mask[...].at[10:].set(False)
    with pytest.raises(ShapeError, match=r"labels are from 0 to 2; the model has 2 classes"):
        fit(model, data, config(epochs=1))
