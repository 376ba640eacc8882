import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nttzoo import data
from nttzoo.data import Labeled, Unlabeled, from_arrays, standardize
from nttzoo.errors import DataError, OptionError, ShapeError

pytestmark = pytest.mark.usefixtures("no_network_and_no_folder")


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
