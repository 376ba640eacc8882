import numpy as np
import pytest

from nttzoo import data


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
