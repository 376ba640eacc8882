import numpy as np
import pytest

from nttzoo import data
from nttzoo.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore")  # tensorflow and tfds warn of themselves


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    """A tfds folder in which tensorflow-datasets itself has prepared 20 images called mnist."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("NTTZOO_DATA", str(tmp_path / "no-npz-here"))
    images = np.random.default_rng(0).integers(0, 256, (20, 28, 28, 1), np.uint8)
    labels = np.arange(20) % 10
    features = {"image": tfds.features.Image(shape=(28, 28, 1)), "label": tfds.features.ClassLabel(num_classes=10)}

    def part(which):
        return tf.data.Dataset.from_tensor_slices({"image": images[which], "label": labels[which]})

    tfds.dataset_builders.store_as_tfds_dataset(
        name="mnist",
        version="3.0.1",
        features=tfds.features.FeaturesDict(features),
        split_datasets={"train": part(slice(15)), "test": part(slice(15, None))},
        data_dir=str(tmp_path),
        disable_shuffling=True,
    )
    return images, labels


@pytest.mark.slow
def test_a_data_set_prepared_by_tfds_is_found(prepared):
    images, labels = prepared
    mnist = data.load("mnist")
    np.testing.assert_array_equal(mnist.train.images, images[:15])
    np.testing.assert_array_equal(mnist.test.labels, labels[15:])


def test_nothing_is_fetched_unasked_and_without_a_network_the_answer_comes_at_once(prepared, monkeypatch):
    asked = []

    def no_network(address, timeout):
        asked.append(address)
        raise OSError("no route")

    monkeypatch.setattr("socket.create_connection", no_network)
    with pytest.raises(DataError, match="Two ways"):
        data.load("cifar10")
    assert not asked
    with pytest.raises(DataError, match="no network"):
        data.load("cifar10", download=True)
    assert len(asked) == 1
