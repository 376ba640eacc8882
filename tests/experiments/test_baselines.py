import json

import numpy as np
import pytest

from nttzoo.data import from_arrays
from nttzoo.errors import DensityError, UnknownName
from nttzoo.experiments import baselines
from nttzoo.experiments.baselines import train_baseline
from nttzoo.sparsity import masks
from nttzoo.training import TrainConfig, accuracy

CONFIG = TrainConfig(epochs=1, batch_size=8, progress=False, seed=3)


def noise(n=120, name="custom", shape=(4, 4, 1)):
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(n, *shape)), np.arange(n) % 3
    return from_arrays(images, labels, images, labels, name=name)


@pytest.mark.parametrize(("name", "count"), [("mnist", 100), ("custom", 100), ("cifar10", 128), ("svhn", 128)])
def test_the_scoring_batch_is_the_papers(name, count):
    data = noise(200, name)
    images, labels = baselines.scoring_batch(data, seed=0)
    assert len(images) == len(labels) == count
    every = (data.train.images - data.mean) / data.std
    for image, label in zip(images, labels, strict=True):
        (found,) = np.nonzero(np.isclose(every, image, atol=1e-5).all((1, 2, 3)))
        assert data.train.labels[found].tolist() == [label]


def test_a_small_data_set_is_scored_whole():
    images, _ = baselines.scoring_batch(noise(30), seed=0)
    assert len(images) == 30


@pytest.mark.parametrize(("method", "scheme", "kept"), [("dense", "layerwise", 1), ("snip", "global", 0.1)])
def test_a_baseline_from_start_to_end(method, scheme, kept):
    data = noise()
    trained = train_baseline("lenet300", data, CONFIG, method=method, density=0.1, scheme=scheme)
    total = masks.density_report(trained.model).total
    assert total.size == 16 * 300 + 300 * 100 + 100 * 3
    assert total.kept == round(kept * total.size) == trained.density.total.kept
    assert trained.speedup.theoretical == pytest.approx(1 / kept)
    written = json.loads(json.dumps(trained.to_dict(), allow_nan=False))
    assert written["test_accuracy"] == trained.history.test_accuracy[-1] == accuracy(trained.model, data)
    expected = {"model": "lenet300", "data": "custom", "method": method, "scheme": scheme, "seed": 3, "epochs": 1}
    assert written["settings"].items() >= expected.items()
    assert written["settings"].get("density") == (None if method == "dense" else 0.1)
    assert written["density"] == {"name": "total", "size": total.size, "kept": total.kept}
    assert f"lenet300 on custom, {method}, {scheme}" in str(trained)


def test_mistakes_are_found_before_training():
    with pytest.raises(UnknownName, match="'lenet300'"):
        train_baseline("lenet3000", noise(), CONFIG)
    with pytest.raises(UnknownName, match="'snip'"):
        train_baseline("lenet300", noise(), CONFIG, method="snipp")
    with pytest.raises(DensityError):
        train_baseline("lenet300", noise(), CONFIG, method="random", density=3)
