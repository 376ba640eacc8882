import numpy as np
import pytest

import nttzoo
from nttzoo import data, training
from nttzoo.errors import OptionError, ShapeError, UnknownName
from nttzoo.training import AUGMENTATIONS, TrainConfig


def images(n=200, size=12):
    return np.random.default_rng(0).integers(0, 256, (n, size, size, 3), np.uint8)


def test_half_of_the_images_are_mirrored_and_none_is_otherwise_changed():
    before = images()
    after = AUGMENTATIONS["flip"](before, np.random.default_rng(1))
    same = (after == before).all((1, 2, 3))
    mirrored = (after == before[:, :, ::-1]).all((1, 2, 3))
    assert (same ^ mirrored).all()
    assert 60 < mirrored.sum() < 140


def test_a_crop_is_a_shift_of_the_reflected_image():
    before = images(40)
    after = AUGMENTATIONS["crop"](before, np.random.default_rng(1))
    shifts = set()
    for old, new in zip(before, after, strict=True):
        padded = np.pad(old, ((4, 4), (4, 4), (0, 0)), mode="reflect")
        found = [(y, x) for y in range(9) for x in range(9) if np.array_equal(padded[y : y + 12, x : x + 12], new)]
        assert len(found) == 1
        shifts.add(found[0])
    assert len(shifts) > 20


@pytest.mark.parametrize("name", list(AUGMENTATIONS))
def test_the_same_generator_gives_the_same_images_and_leaves_the_originals(name):
    before = images()
    kept = before.copy()
    first, second = (AUGMENTATIONS[name](before, np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(before, kept)
    assert first.dtype == before.dtype


def small():
    rng = np.random.default_rng(0)
    arrays = (rng.integers(0, 256, (64, 8, 8, 1), np.uint8), rng.integers(0, 3, 64))
    return data.from_arrays(*arrays, *arrays, name="small", classes=("a", "b", "c"))


def network():
    dense = nttzoo.create("lenet300", input_shape=(8, 8, 1), num_classes=3, rngs=0)
    return nttzoo.prune(dense, "random", density=0.2, rngs=0)


@pytest.mark.parametrize("engine", ["jax", "c"])
def test_each_epoch_sees_images_of_its_own(engine):
    seen = []

    def spy(images, rng):
        changed = AUGMENTATIONS["crop_flip"](images, rng)
        seen.append(changed)
        return changed

    config = TrainConfig(epochs=2, batch_size=16, augmentation=spy, engine=engine, progress=False, validation=0.0)
    results = []
    for how in (config, TrainConfig(epochs=2, batch_size=16, engine=engine, progress=False, validation=0.0)):
        model = network()
        results.append(training.fit(model, small(), how).train_loss)
    assert len(seen) == 2
    assert (seen[0] != seen[1]).any()
    assert results[0] != results[1]


def test_what_is_no_augmentation_is_refused():
    with pytest.raises(UnknownName, match="crop_flip"):
        TrainConfig(augmentation="crop_flop")
    with pytest.raises(OptionError, match="augmentation"):
        TrainConfig(augmentation=3)
    config = TrainConfig(epochs=1, batch_size=16, augmentation=lambda x, rng: x[:3], progress=False)
    with pytest.raises(ShapeError, match=r"made uint8 \[3, 8, 8, 1\]"):
        training.fit(
            network(),
            small(),
            config,
        )
