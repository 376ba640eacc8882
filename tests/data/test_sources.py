import sys
import textwrap

import numpy as np
import pytest

from nttzoo import data
from nttzoo.errors import DataError, ShapeError, UnknownName

pytestmark = pytest.mark.usefixtures("no_network_and_no_folder")


def fake(shape=(28, 28, 1), train=12, test=6, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (train, *shape), np.uint8),
        "y_train": np.arange(train, dtype=np.uint8) % 10,
        "x_test": rng.integers(0, 256, (test, *shape), np.uint8),
        "y_test": np.arange(test, dtype=np.uint8) % 10,
    }
    return {**arrays, **changes}


SHAPES = {"mnist": (28, 28, 1), "fashion_mnist": (28, 28, 1), "cifar10": (32, 32, 3), "svhn": (32, 32, 3)}


@pytest.mark.parametrize("name", SHAPES)
def test_local_files_are_found_by_argument_or_environment(name, tmp_path, monkeypatch):
    arrays = fake(SHAPES[name])
    np.savez(tmp_path / f"{name}.npz", **arrays)
    by_argument = data.load(name, data_dir=tmp_path)
    monkeypatch.setenv("NTTZOO_DATA", str(tmp_path))
    by_environment = data.load(name)
    for loaded in (by_argument, by_environment):
        np.testing.assert_array_equal(loaded.train.images, arrays["x_train"])
        np.testing.assert_array_equal(loaded.test.images, arrays["x_test"])
        np.testing.assert_array_equal(loaded.train.labels, arrays["y_train"])
        np.testing.assert_array_equal(loaded.test.labels, arrays["y_test"])
        assert (loaded.name, loaded.input_shape, loaded.num_classes) == (name, SHAPES[name], 10)
        assert len(set(loaded.classes)) == 10


def test_the_argument_goes_before_the_environment_and_that_before_the_cache(tmp_path, monkeypatch):
    assert data.data_folder(tmp_path) == tmp_path
    assert data.data_folder() == tmp_path / "empty"
    monkeypatch.delenv("NTTZOO_DATA")
    monkeypatch.setattr("nttzoo.data.sources.platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache" / name))
    assert data.data_folder() == tmp_path / "cache" / "nttzoo" / "data"


def test_svhn_is_also_found_by_its_other_name_and_digit_zero_is_0(tmp_path):
    labels = {"y_train": np.arange(1, 13, dtype=np.uint8) % 10, "y_test": np.array([10, 1, 9, 10, 2, 3], np.uint8)}
    np.savez(tmp_path / "svhn_cropped.npz", **fake((32, 32, 3), **labels))
    loaded = data.load("svhn", data_dir=tmp_path)
    np.testing.assert_array_equal(loaded.test.labels, [0, 1, 9, 0, 2, 3])


def test_images_may_lack_the_channel_axis(tmp_path):
    np.savez(tmp_path / "mnist.npz", **fake((28, 28)))
    assert data.load("mnist", data_dir=tmp_path).train.images.shape == (12, 28, 28, 1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x_train": np.zeros((12, 28, 28, 1), np.float32)}, "uint8"),
        ({"x_test": np.zeros((6, 28, 28, 1), np.float32)}, "uint8"),
        ({"x_train": np.zeros((12, 28, 28, 1), np.int64)}, "uint8"),
        ({"x_train": np.zeros((12, 27, 28, 1), np.uint8)}, "shape"),
        (
            dict.fromkeys(["x_train", "x_test"], np.zeros((6, 27, 28, 1), np.uint8)) | {"y_train": np.zeros(6, int)},
            "28",
        ),
        ({"x_train": np.zeros((0, 28, 28, 1), np.uint8), "y_train": np.zeros(0, int)}, "n > 0"),
        ({"x_train": np.zeros((12, 784), np.uint8)}, "images"),
        ({"y_train": np.zeros(11, int)}, "one per image"),
        ({"y_train": np.zeros((12, 1), int)}, "one per image"),
        ({"y_test": np.zeros(6)}, "integers"),
        ({"y_train": np.full(12, 10)}, r"outside 0 \.\.\. 9"),
        ({"y_test": np.full(6, -1)}, r"outside 0 \.\.\. 9"),
    ],
)
def test_a_file_with_something_else_in_it_is_refused(tmp_path, changes, says):
    np.savez(tmp_path / "mnist.npz", **fake(**changes))
    with pytest.raises((DataError, ShapeError), match=says):
        data.load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("missing", ["x_train", "y_train", "x_test", "y_test"])
def test_a_missing_array_is_named(tmp_path, missing):
    np.savez(tmp_path / "mnist.npz", **{name: v for name, v in fake().items() if name != missing})
    with pytest.raises(DataError, match=f"mnist.npz lacks {missing};"):
        data.load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("part", [0, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_named(tmp_path, part, compressed):
    path = tmp_path / "mnist.npz"
    (np.savez_compressed if compressed else np.savez)(path, **fake())
    whole = path.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(DataError, match=r"mnist\.npz cannot be read.*get it again"):
        data.load("mnist", data_dir=tmp_path)


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "mnist.npz"
    np.savez_compressed(path, **fake())
    damaged = bytearray(path.read_bytes())
    damaged[2000:2100] = bytes(100)
    path.write_bytes(damaged)
    with pytest.raises(DataError, match=r"mnist\.npz cannot be read"):
        data.load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("what", ["text", "npy", "pickle", "folder"])
def test_something_other_than_an_npz_is_named(tmp_path, what):
    path = tmp_path / "mnist.npz"
    if what == "text":
        path.write_text("<html>404</html>")
    elif what == "npy":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    elif what == "pickle":
        np.savez(path, **fake(y_train=np.array([{}] * 12, object)))
    else:
        path.mkdir()
    with pytest.raises(DataError, match=r"mnist\.npz cannot be read"):
        data.load("mnist", data_dir=tmp_path)


@pytest.mark.parametrize("download", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_a_missing_data_set_raises_at_once_and_names_both_ways(name, download, tmp_path):
    with pytest.raises(DataError, match=f"'{name}' is not on this machine") as caught:
        data.load(name, data_dir=tmp_path, download=download)
    message = str(caught.value)
    assert f"{name}.npz" in message
    assert str(tmp_path) in message
    assert "pip install nttzoo[tfds]" in message
    assert "download=True" in message


def test_an_unknown_data_set_lists_the_near_misses():
    with pytest.raises(UnknownName, match=r"no data set 'cifar'. Did you mean 'cifar10'"):
        data.load("cifar")


TFDS = """
    import numpy as np
    from pathlib import Path

    prepared, calls = False, []

    class Builder:
        data_path = property(lambda self: Path(__file__) if prepared else Path(__file__) / "nothing")

        def download_and_prepare(self):
            global prepared
            calls.append("download")
            prepared = True

        def as_dataset(self, split, batch_size):
            n = {"train": 4, "test": 2}[split]
            return {"image": np.full((n, 32, 32, 3), n, np.uint8), "label": np.arange(n)}

    def builder(name, data_dir=None):
        calls.append(name)
        return Builder()

    def as_numpy(x):
        return x
"""


@pytest.fixture
def tfds(tmp_path, monkeypatch):
    """A stand-in for tensorflow-datasets, whose data set is not prepared yet."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "tensorflow_datasets.py").write_text(textwrap.dedent(TFDS))
    monkeypatch.delitem(sys.modules, "tensorflow_datasets")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    import tensorflow_datasets

    yield tensorflow_datasets
    sys.modules.pop("tensorflow_datasets", None)


def test_tfds_is_asked_only_for_what_it_has(tfds, monkeypatch):
    with pytest.raises(DataError, match="not on this machine"):
        data.load("svhn")
    with pytest.raises(AssertionError, match="reached for the network"):
        data.load("svhn", download=True)
    monkeypatch.setattr("nttzoo.data.tfds._online", lambda: False)
    with pytest.raises(DataError, match="no network"):
        data.load("svhn", download=True)
    assert "download" not in tfds.calls
    monkeypatch.setattr("nttzoo.data.tfds._online", lambda: True)
    loaded = data.load("svhn", download=True)
    assert tfds.calls == [*["svhn_cropped"] * 4, "download"]
    assert loaded.train.images.shape == (4, 32, 32, 3)
    np.testing.assert_array_equal(loaded.test.labels, [0, 1])
    assert data.load("svhn").name == "svhn", "once prepared, it needs no download"
