import dataclasses
import socket
import sys
import textwrap

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nttzoo import data
from nttzoo.data import Labeled, Unlabeled, from_arrays, standardize
from nttzoo.errors import DataError, OptionError, ShapeError, UnknownName


def fake(shape=(28, 28, 1), train=12, test=6, **changes):
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (train, *shape), np.uint8),
        "y_train": np.arange(train, dtype=np.uint8) % 10,
        "x_test": rng.integers(0, 256, (test, *shape), np.uint8),
        "y_test": np.arange(test, dtype=np.uint8) % 10,
    }
    return {**arrays, **changes}


@pytest.fixture(autouse=True)
def no_network_and_no_folder(monkeypatch, tmp_path):
    def refuse(*args, **kwargs):
        raise AssertionError("a test reached for the network")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("NTTZOO_DATA", str(tmp_path / "empty"))
    # Whether or not tensorflow-datasets is installed: None in sys.modules means that it is not.
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)


@pytest.fixture(scope="module")
def mnist5k():
    return data.load("mnist5k")


def test_mnist5k_is_embedded_and_stratified(mnist5k):
    assert mnist5k.train.images.shape == (5000, 28, 28, 1)
    assert mnist5k.test.images.shape == (1000, 28, 28, 1)
    assert mnist5k.train.images.dtype == mnist5k.test.images.dtype == np.uint8
    np.testing.assert_array_equal(np.bincount(mnist5k.train.labels), np.full(10, 500))
    np.testing.assert_array_equal(np.bincount(mnist5k.test.labels), np.full(10, 100))
    assert (mnist5k.input_shape, mnist5k.num_classes) == ((28, 28, 1), 10)
    assert mnist5k.license == "CC BY-SA 3.0"


def test_mnist5k_holds_no_image_twice(mnist5k):
    images = np.concatenate([mnist5k.train.images, mnist5k.test.images]).reshape(6000, -1)
    assert len(np.unique(images, axis=0)) == 6000


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


X, Y = np.random.default_rng(0).normal(size=(6, 3, 4, 2)), np.array([0, 1, 2, 0, 1, 2])


def test_arrays_of_ones_own():
    own = from_arrays(X, Y, X[:2], Y[:2], name="mine")
    assert (own.name, own.classes, own.num_classes, own.input_shape) == ("mine", ("0", "1", "2"), 3, (3, 4, 2))
    named = from_arrays(X, Y, X, Y, classes=("a", "b", "c", "d"))
    assert (named.classes, named.num_classes) == (("a", "b", "c", "d"), 4)


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ((np.where(np.arange(2) == 1, np.nan, X), Y, X, Y), DataError),
        ((X, Y, np.where(np.arange(2) == 1, np.inf, X), Y), DataError),
        ((X[0], Y[:3], X, Y), ShapeError),
        ((X, Y[:-1], X, Y), ShapeError),
        ((X, Y * 1.0, X, Y), ShapeError),
        ((X, Y, X[:, :2], Y), ShapeError),
        ((X.astype(int), Y, X, Y), ShapeError),
        ((X[:0], Y[:0], X, Y), ShapeError),
        ((X, Y, X[:0], Y[:0]), ShapeError),
        ((X, Y - 1, X, Y), DataError),
        (([], [], [], []), ShapeError),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays, error):
    with pytest.raises(error):
        from_arrays(*arrays)


def test_labels_beyond_the_named_classes_are_refused():
    with pytest.raises(DataError, match=r"outside 0 \.\.\. 1"):
        from_arrays(X, Y, X, Y, classes=("a", "b"))


images = st.sampled_from([np.uint8, np.float32]).flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
        elements=None if dtype == np.uint8 else st.floats(-8, 8, width=16),
    )
)


@given(images)
def test_mean_and_std_are_numpys(x):
    dataset = from_arrays(x, np.zeros(len(x), int), x, np.zeros(len(x), int))
    scaled = x.astype(np.float64) / (255 if x.dtype == np.uint8 else 1)
    np.testing.assert_allclose(dataset.mean, scaled.mean((0, 1, 2)), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(dataset.std, scaled.std((0, 1, 2)), rtol=1e-5, atol=1e-6)


def test_mean_and_std_of_mnist5k(mnist5k):
    scaled = mnist5k.train.images / 255.0
    np.testing.assert_allclose(mnist5k.mean, [scaled.mean()], rtol=1e-6)
    np.testing.assert_allclose(mnist5k.std, [scaled.std()], rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "axes"), [(np.uint8, (5, 6)), (np.float32, (5, 6)), (np.float32, (5,)), (np.float32, ()), (np.uint8, ())]
)
def test_standardized_examples_have_mean_0_and_std_1_per_channel(dtype, axes):
    rng = np.random.default_rng(0)
    x = np.stack([rng.integers(0, 9, (7, *axes)), rng.integers(90, 256, (7, *axes))], -1).astype(dtype)
    own = from_arrays(x, np.zeros(7, int), x, np.zeros(7, int))
    y = standardize(jnp.asarray(x), jnp.asarray(own.mean), jnp.asarray(own.std))
    assert y.dtype == jnp.float32
    but_channels = tuple(range(x.ndim - 1))
    np.testing.assert_allclose(y.mean(but_channels), [0, 0], atol=1e-5)
    np.testing.assert_allclose(y.std(but_channels), [1, 1], rtol=1e-5)
    np.testing.assert_allclose(y, (x - x.mean(but_channels)) / x.std(but_channels), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("x", [*np.arange(256, dtype=np.uint8), *np.float32([0, 0.1, 1e6]), 0.1, -0.7, 1 / 3])
def test_a_constant_channel_becomes_zero(x):
    whole = np.full((7, 5, 5, 1), x)
    own = from_arrays(whole, np.zeros(7, int), whole, np.zeros(7, int))
    assert own.std == 0
    y = np.asarray(standardize(whole, own.mean, own.std))
    np.testing.assert_allclose(y, 0, atol=1e-6 * max(1, abs(float(x))))


def numbered(n):
    """Images that tell which example they are."""
    return Labeled(np.arange(n, dtype=np.float32).reshape(n, 1, 1, 1), np.arange(n, dtype=np.int32) % 7)


@given(st.integers(1, 60), st.floats(0, 0.99), st.integers(0, 3))
def test_splits_are_disjoint_complete_and_of_the_rounded_size(n, fraction, seed):
    rest, held = numbered(n).split(fraction, rngs=seed)
    assert len(held) == round(fraction * n)
    found = np.concatenate([rest.images, held.images]).ravel()
    np.testing.assert_array_equal(np.sort(found), np.arange(n))
    for part in (rest, held):
        np.testing.assert_array_equal(part.labels, part.images.ravel() % 7)


def test_splits_are_decided_by_the_seed():
    first, same, other = (numbered(50).split(0.2, rngs=seed)[1].images for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("fraction", [-0.1, 1, 1.5, float("nan")])
def test_a_held_out_fraction_is_in_0_to_1(fraction):
    with pytest.raises(OptionError, match=r"\[0, 1\)"):
        numbered(5).split(fraction, rngs=0)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 3))
def test_an_epoch_shows_each_example_at_most_once_and_leaves_out_less_than_a_batch(n, size, seed):
    if size > n:
        with pytest.raises(OptionError, match=f"1 to {n}"):
            list(numbered(n).batches(size, rngs=seed))
        return
    batches = list(numbered(n).batches(size, rngs=seed))
    assert len(batches) == n // size
    assert all(x.shape == (size, 1, 1, 1) for x, _ in batches)
    seen = np.concatenate([x.ravel() for x, _ in batches])
    assert len(set(seen)) == len(seen) == n // size * size
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), seen % 7)
    without = [x.ravel() for x in numbered(n).without_labels().batches(size, rngs=seed)]
    np.testing.assert_array_equal(np.concatenate(without), seen)


def test_batches_are_decided_by_the_seed():
    first, same, other = (next(numbered(50).batches(20, rngs=seed))[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_has_an_image(size):
    with pytest.raises(OptionError, match="choose 1 to 5"):
        next(numbered(5).without_labels().batches(size, rngs=0))


def test_unlabeled_images_hold_no_labels():
    unlabeled = numbered(9).without_labels()
    assert isinstance(unlabeled, Unlabeled)
    assert [field.name for field in dataclasses.fields(unlabeled)] == ["images"]
    assert list(vars(unlabeled)) == ["images"]
    assert len(unlabeled) == 9
    assert not hasattr(unlabeled, "labels")
