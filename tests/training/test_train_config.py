import pytest
from blobs import SHAPE, blobs, config, same, small

from nttzoo.architectures import create
from nttzoo.errors import OptionError, ShapeError, UnknownName
from nttzoo.training import TrainConfig, accuracy, fit


def test_images_of_another_shape_or_too_many_classes_are_refused():
    model = create("lenet300", num_classes=2, input_shape=(4, 5, 1), rngs=0)
    with pytest.raises(ShapeError, match=r"\(4, 5, 1\).*\(4, 4, 1\).*input_shape=\(4, 4, 1\)"):
        fit(model, blobs(), config())
    model = create("lenet300", num_classes=2, input_shape=SHAPE, rngs=0)
    with pytest.raises(ShapeError, match=r"2 outputs.*num_classes=3"):
        fit(model, blobs(), config())
    with pytest.raises(ShapeError):
        accuracy(model, blobs())


@pytest.mark.parametrize("size", [0, 37, 1000])
def test_a_batch_size_that_does_not_fit_is_refused_before_any_work(size):
    model = small()
    with pytest.raises(OptionError, match=r"choose 1 to 36"):
        fit(model, blobs(40), config(batch_size=size, validation=0.1))
    assert same(model, small())


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": -1},
        {"learning_rate": 0},
        {"learning_rate": -1},
        {"learning_rate": float("nan")},
        {"validation": 1},
        {"validation": -0.1},
        {"seed": -1},
        {"seed": 2**32},
        {"seed": 1.5},
    ],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        TrainConfig(**options)


@pytest.mark.parametrize(
    ("options", "hint"), [({"optimizer": "adm"}, "'adam'"), ({"loss": "cross_entrpy"}, "'cross_entropy'")]
)
def test_unknown_names_list_the_near_misses(options, hint):
    with pytest.raises(UnknownName, match=f"Did you mean {hint}"):
        fit(small(), blobs(), config(**options))


def test_the_defaults_are_the_papers():
    defaults = TrainConfig()
    assert (defaults.epochs, defaults.batch_size, defaults.learning_rate, defaults.validation) == (50, 64, 1e-3, 0.1)
    assert (defaults.optimizer, defaults.loss) == ("adam", "cross_entropy")
