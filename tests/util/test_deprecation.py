import jax
import numpy as np
import pytest
from flax import nnx

import nttzoo
from nttzoo import data
from nttzoo._util.rngs import as_generator, as_key
from nttzoo.errors import OptionError


@pytest.mark.parametrize(
    ("old", "new"), [("standardise", "standardize"), ("Labelled", "Labeled"), ("Unlabelled", "Unlabeled")]
)
def test_old_names_still_work_and_name_the_new_one(old, new):
    with pytest.warns(DeprecationWarning, match=f"nttzoo.data.{old} is deprecated .* use nttzoo.data.{new}"):
        assert getattr(data, old) is getattr(data, new)


def test_old_methods_and_attributes_still_work():
    mnist5k = data.load("mnist5k")
    images = mnist5k.test.images[:3]
    with pytest.warns(DeprecationWarning, match=r"Dataset\.standardise is deprecated"):
        old = mnist5k.standardise(images)
    np.testing.assert_array_equal(old, mnist5k.standardize(images))
    with pytest.warns(DeprecationWarning, match=r"InputSpec\.standardise is deprecated"):
        old = mnist5k.input_spec.standardise(images)
    np.testing.assert_array_equal(old, mnist5k.input_spec.standardize(images))
    with pytest.warns(DeprecationWarning, match="license"):
        assert mnist5k.licence == mnist5k.license


def test_unknown_names_are_still_unknown():
    with pytest.raises(AttributeError, match="no attribute 'standardyse'"):
        _ = data.standardyse


def test_key_and_seed_are_old_names_of_rngs():
    model, images = nttzoo.sparsify(nnx.Linear(6, 4, rngs=nnx.Rngs(0))), data.load("mnist5k").test
    with pytest.warns(DeprecationWarning, match=r"prune\(key=\.\.\.\) is deprecated .* use rngs="):
        old = nttzoo.prune(nnx.clone(model), "random", density=0.5, key=3)
    np.testing.assert_array_equal(old.mask[...], nttzoo.prune(model, "random", density=0.5, rngs=3).mask[...])
    with pytest.warns(DeprecationWarning, match="rngs"):
        first = next(images.batches(5, seed=1))
    np.testing.assert_array_equal(first[0], next(images.batches(5, rngs=1))[0])
    with pytest.raises(TypeError, match="both"):
        nttzoo.prune(model, "random", density=0.5, key=3, rngs=3)


def test_rngs_are_streams_keys_or_numbers():
    streams = nnx.Rngs(5)
    np.testing.assert_array_equal(jax.random.key_data(as_key(7)), jax.random.key_data(jax.random.key(7)))
    first, second = (jax.random.key_data(as_key(streams)) for _ in range(2))
    assert (first != second).any()  # each call draws the next key
    same, other = (as_generator(key).integers(2**62) for key in (jax.random.key(1), jax.random.key(2)))
    assert same == as_generator(jax.random.PRNGKey(1)).integers(2**62) != other
    for wrong in (None, "0", 0.5, -1, True, np.zeros(3)):
        with pytest.raises(OptionError, match="rngs"):
            as_key(wrong)
