import pytest

from nttzoo.errors import DensityError, NttzooError, OptionError, UnknownName
from nttzoo.search import recipes

# The paper's table: epochs, batch, learning rate, mask_every, gamma^2, beta
TABLE = {
    ("lenet300", "mnist"): (20, 64, 5e-4, 100, 1e-3, 1e-4),
    ("lenet300", "fashion_mnist"): (20, 64, 5e-4, 100, 1e-3, 1e-4),
    ("lenet5", "mnist"): (20, 64, 5e-4, 100, 1e-3, 1e-5),
    ("lenet5", "fashion_mnist"): (20, 64, 5e-4, 100, 1e-3, 1e-5),
    ("conv4", "cifar10"): (20, 32, 5e-4, 100, 1e-3, 1e-8),
    ("conv4", "svhn"): (20, 32, 5e-4, 100, 1e-3, 1e-8),
}
VISUAL = {"lenet300": (5000, 500, 1e-3, 100, 1e-5, 0), "lenet5": (5000, 500, 5e-4, 100, 1e-6, 0)}


def values(r):
    return (r.epochs, r.batch_size, r.learning_rate, r.mask_every, r.kernel_weight, r.weight_decay)


@pytest.mark.parametrize("task", TABLE, ids="-".join)
def test_the_default_recipes_are_the_papers(task):
    recipe = recipes.find("ntt", *task)
    assert values(recipe) == TABLE[task]
    assert (recipe.tangents, recipe.outputs, recipe.start_density) == ("all", None, None)


@pytest.mark.parametrize("model", VISUAL)
def test_the_recipes_for_zeros_and_ones_are_the_papers(model):
    assert values(recipes.VISUAL[model]) == VISUAL[model]


def test_gradual_differs_in_the_fall_of_the_density_only():
    ntt, gradual = (recipes.find(name, "lenet300", "mnist") for name in ("ntt", "gradual"))
    assert gradual.start_density is not None
    assert gradual.change(name="ntt") == ntt.change(**{f: getattr(gradual, f) for f in recipes.FALL_FIELDS})


@pytest.mark.parametrize(("shape", "middle"), [("geometric", 0.1), ("linear", 0.2525), ("cubic", 0.01 + 0.49 / 8)])
def test_the_falls_by_hand(shape, middle):
    target = 0.02 if shape == "geometric" else 0.005 if shape == "linear" else 0.01
    fall = recipes.FALLS[shape]
    assert fall(0.5, target, 0) == pytest.approx(0.5)
    assert fall(0.5, target, 1) == pytest.approx(target)
    assert fall(0.5, target, 0.5) == pytest.approx(middle)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 63}, r"must be even: for example 62 or 64"),
        ({"batch_size": 0}, "for example 2 or 4"),
        ({"learning_rate": -1.0}, "must be positive"),
        ({"kernel_weight": float("nan")}, "kernel_weight is nan"),
        ({"tangents": "some"}, "'all', 'active'"),
        ({"outputs": 0}, "outputs is 0"),
        ({"start_density": 1.5}, "not in"),
        ({"fall": 0.0}, "fraction of the steps"),
        ({"fall_shape": "geometrical"}, "Did you mean 'geometric'"),
        ({"held_out": 1.0}, "held_out is 1.0"),
        ({"mask_every": 0}, "mask_every is 0"),
        ({"mask_momentum": 1.5}, "mask_momentum is 1.5"),
        ({"output_loss": "kl"}, "'squared', 'reverse_kl'"),
        ({"normalize_kernels": "yes"}, "normalize_kernels"),
        ({"active_from": 2.0}, "active_from is 2.0"),
    ],
)
def test_values_that_make_no_sense_are_refused(change, says):
    with pytest.raises(NttzooError, match=says):
        recipes.find("ntt", "lenet300", "mnist").change(**change)


def test_unknown_recipes_list_what_there_is():
    with pytest.raises(UnknownName, match=r"no recipe 'gradul'\. Did you mean 'gradual'"):
        recipes.find("gradul", "lenet300", "mnist")
    with pytest.raises(
        OptionError, match=r"no recipe for lenet5 on cifar10; lenet5 has recipes for mnist .*\(--data\)"
    ):
        recipes.find("ntt", "lenet5", "cifar10")
    with pytest.raises(UnknownName, match="lenet300"):
        recipes.find("ntt", "lenet30", "mnist")
    with pytest.raises(DensityError):
        recipes.find("gradual", "lenet300", "mnist").change(start_density=-0.5)
