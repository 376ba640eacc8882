import math
import re

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

import nttzoo
from nttzoo import architectures, nn
from nttzoo.errors import DensityError, OptionError, ShapeError, UnknownName
from nttzoo.sparsity import cost, masks, schemes
from nttzoo.sparsity.allocation import allocate, describe
from nttzoo.sparsity.density import check_density
from nttzoo.sparsity.schemes import Group, Layer


def layers(**shapes):
    """Layers by name; a shape may be followed by the positions, after a slash: a=((3, 4), 5)."""
    positions = {(name,): value[1] if isinstance(value[0], tuple) else 1 for name, value in shapes.items()}
    kernels = {name: value[0] if isinstance(value[0], tuple) else value for name, value in shapes.items()}
    return [Layer((name,), shape, lambda: positions) for name, shape in kernels.items()]


def counts(groups):
    return {"+".join(layer.name for layer in group.layers): group.kept for group in groups}


def weights(groups):
    return sum(group.kept for group in groups)


def multiply_adds(groups):
    return sum(group.kept * group.layers[0].positions for group in groups)


def test_layerwise_and_global_by_hand():
    three = layers(a=(10, 10), b=(5, 5), c=(3,))
    assert counts(allocate(three, 0.3)) == {"a": 30, "b": 8, "c": 1}  # 7.5 is rounded to the even 8
    assert counts(allocate(three, 0.3, "global")) == {"a+b+c": 38}


def test_erk_by_hand():
    # Dimensions sum to 20, 10 and 6: of 18 weights 10, 5 and 3.
    assert counts(allocate(layers(a=(10, 10), b=(5, 5), c=(3, 3)), 18 / 134, "erk")) == {"a": 10, "b": 5, "c": 3}
    # Of 72 the last would have 12 but has only 9: it stays dense, and the others share 63 as 2 : 1.
    assert counts(allocate(layers(a=(10, 10), b=(5, 5), c=(3, 3)), 72 / 134, "erk")) == {"a": 42, "b": 21, "c": 9}
    # A convolution's window counts: 3 + 3 + 2 + 4 against 12 + 12.
    assert counts(allocate(layers(conv=(3, 3, 2, 4), linear=(12, 12)), 36 / 216, "erk")) == {"conv": 12, "linear": 24}


CONV4 = describe(architectures.create("conv4", rngs=0))


def test_the_budget_of_conv4_is_that_of_layerwise_spent_better():
    even, better = allocate(CONV4, 0.01), allocate(CONV4, 0.01, "budget")
    assert weights(better) == weights(even) == 19033
    assert 0.999 * multiply_adds(even) < multiply_adds(better) <= multiply_adds(even) == 574_659
    found = [group.kept / group.size for group in better]
    # Found by trial and error: 10 / 0.6 / 1.2 / 0.7 / 0.9 / 30 %, 14 points better than layerwise.
    np.testing.assert_allclose(found, [0.084, 0.0079, 0.0096, 0.0066, 0.0091, 0.41], rtol=0.02)


@pytest.mark.parametrize("density", [0.01, 0.05, 0.3])
def test_the_budget_is_the_nearest_allocation_to_erk(density):
    """Against a general solver of the same constrained problem."""
    erk = np.array([sum(layer.shape) for layer in CONV4], float)
    sizes, positions = (np.array([getattr(x, key) for x in CONV4], float) for key in ("size", "positions"))
    even = np.array([round(density * size) for size in sizes])
    erk *= even.sum() / erk.sum()
    unit = even.sum()
    constraints = [
        {"type": "eq", "fun": lambda k: k.sum() - 1},
        {"type": "eq", "fun": lambda k: (k @ positions - even @ positions / unit) / positions.max()},
    ]
    solved = optimize.minimize(
        lambda k: (k * np.log(k * unit / erk)).sum(),
        even / unit,
        jac=lambda k: np.log(k * unit / erk) + 1,
        bounds=[(1 / unit, size / unit) for size in sizes],
        constraints=constraints,
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    assert solved.success
    ours = [group.kept for group in allocate(CONV4, density, "budget")]
    np.testing.assert_allclose(ours, solved.x * unit, rtol=2e-3, atol=4)


shapes = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(1, 50)), min_size=1, max_size=5)


@given(shapes, st.floats(0.02, 1), st.sampled_from(["erk", "budget"]))
def test_totals_are_exact_and_no_layer_is_empty_or_overfull(dimensions, density, scheme):
    several = layers(**{f"x{i}": ((a, b), p) for i, (a, b, p) in enumerate(dimensions)})
    even = schemes.layerwise(several, density)
    try:
        groups = allocate(several, density, scheme)
    except DensityError:
        assert density < 1
        # Only where one weight in each layer is too much, which layerwise leaves empty.
        assert weights(even) < len(several) or any(group.kept == 0 for group in even)
        return
    assert all(1 <= group.kept <= group.size for group in groups)
    if scheme == "erk":
        assert weights(groups) == round(density * sum(layer.size for layer in several))
    else:
        assert weights(groups) == weights(even)
        assert multiply_adds(groups) <= multiply_adds(even)


def test_where_each_weight_is_used_once_budget_is_erk():
    flat = describe(architectures.create("lenet300", rngs=0))
    assert counts(allocate(flat, 0.03, "budget")) == counts(allocate(flat, 0.03, "erk"))


@pytest.mark.parametrize("scheme", ["erk", "budget"])
def test_a_density_too_low_for_one_weight_per_layer_is_refused(scheme):
    with pytest.raises(DensityError, match=r"density 0\.001"):
        allocate(layers(a=(10, 10), b=((5, 5), 9), c=(3, 3)), 0.001, scheme)


@pytest.mark.parametrize("scheme", schemes.SCHEMES)
@pytest.mark.parametrize("density", [0, 0.0, -1, 1.5, float("nan"), float("inf"), True, "a", None])
def test_a_density_outside_0_to_1_is_refused(density, scheme):
    with pytest.raises(DensityError, match=re.escape(f"density {density!r} is not in (0, 1]") + ".*KEPT"):
        allocate(layers(a=(1, 2)), density, scheme)
    with pytest.raises(DensityError, match=re.escape(f"density {density!r} is not in (0, 1]")):
        allocate(layers(a=(1, 2)), {"*": density}, scheme)


@pytest.mark.parametrize("density", [1, 1.0, 0.25, np.float32(0.5), np.int64(1)])
def test_a_density_may_be_any_number_in_range(density):
    checked = check_density(density)
    assert type(checked) is float
    assert checked == density


def test_an_unknown_scheme_lists_the_near_misses():
    with pytest.raises(UnknownName, match=r"no scheme 'layer_wise'\. Did you mean 'layerwise'") as caught:
        allocate(layers(a=(2,)), 1, "layer_wise")
    assert isinstance(caught.value, KeyError)


def test_each_glob_has_its_density_and_the_first_counts():
    four = layers(**{"stem": (10, 10), "blocks.0": (10, 10), "blocks.1": (10, 10), "head": (10, 10)})
    several = {"blocks.1": 0.5, "blocks.*": 0.2, "*": 0.1}
    assert counts(allocate(four, several)) == {"blocks.1": 50, "blocks.0": 20, "stem": 10, "head": 10}
    # A scheme sees the layers of each glob by themselves.
    assert counts(allocate(four, {"blocks.*": 0.2, "*": 0.1}, "global")) == {"blocks.0+blocks.1": 40, "stem+head": 20}
    kept = counts(allocate(four, {"blocks.*": 0.2, "*": 0.1}, "global", exclude=["head"]))
    assert kept == {"head": 100, "blocks.0+blocks.1": 40, "stem": 10}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"exclude": ["haed"]}, "no layer's path matches 'haed'. The prunable layers are: stem, head"),
        ({"density": {"haed": 0.1, "*": 0.1}}, "no layer's path matches 'haed'"),
        ({"density": {"head": 0.1}}, "no density for: stem. Add '*'"),
        ({"exclude": ["*"]}, "matches every layer"),
        ({"exclude": "head"}, r"write \['head'\]"),
        ({"density": {}}, "is empty"),
        ({"density": {"head": 0.001, "*": 0.5}}, r"density 0.001 would leave layer 'head' \(50 weights\) empty"),
        ({"scheme": lambda layers, density: []}, "must put each layer into exactly one group"),
        ({"scheme": lambda x, p: [Group(tuple(x), 3), Group((x[0],), 1)]}, "exactly one group"),
        ({"scheme": lambda x, p: [Group(tuple(x), 151)]}, "keeps 151 of 150 weights of stem, head"),
        ({"scheme": lambda x, p: [Group(tuple(x), 1.5)]}, "keeps 1.5 of 150"),
        ({"scheme": lambda x, p: schemes.each_alone(x, [0, 9])}, "'stem' .* empty under the scheme"),
    ],
)
def test_what_does_not_fit_is_refused(options, says):
    with pytest.raises((OptionError, DensityError), match=says):
        allocate(layers(stem=(10, 10), head=(5, 10)), **{"density": 0.1, **options})


class Small(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.stem = nnx.Conv(1, 4, (3, 3), rngs=rngs)
        self.blocks = nnx.List([nnx.Linear(16, 16, rngs=rngs), nnx.Linear(16, 16, rngs=rngs)])
        self.head = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x):
        x = self.stem(x)[:, ::2, ::2, :].reshape(len(x), -1)
        for block in self.blocks:
            x = nnx.relu(block(x))
        return self.head(x)


IMAGES = jnp.ones((5, 4, 4, 1))


def kept(model):
    return {layer.name: layer.kept for layer in masks.density_report(model).layers}


def test_prune_excludes_layers_and_takes_densities_per_layer():
    model = nttzoo.sparsify(Small())
    nttzoo.prune(model, "magnitude", density={"blocks.0": 0.25, "*": 0.5}, exclude=["head"])
    assert kept(model) == {"blocks.0": 64, "blocks.1": 128, "head": 48, "stem": 18}


def test_random_masks_spread_a_groups_weights_evenly_and_scale_by_each_layers_density():
    model = nttzoo.sparsify(Small())
    nttzoo.prune(model, "random", density={"blocks.*": 0.25, "*": 0.5}, scheme="global", rngs=0)
    assert kept(model) == {"blocks.0": 64, "blocks.1": 64, "head": 24, "stem": 18}
    nttzoo.prune(model, "scaled_random", density={"blocks.0": 0.04, "*": 0.5}, rngs=0)
    dense, sparse = (float(model.blocks[i].kernel[...].std()) for i in (1, 0))
    assert sparse / dense == pytest.approx(math.sqrt(0.5 / (10 / 256)), rel=0.15)


def test_budget_counts_multiply_adds_at_the_batchs_or_a_given_shape():
    even, better = (nttzoo.sparsify(Small()) for _ in range(2))
    nttzoo.prune(even, "magnitude", density=0.2)
    with pytest.raises(ShapeError, match=r"Small does not say its input shape.*input_shape="):
        nttzoo.prune(better, "magnitude", density=0.2, scheme="budget")
    nttzoo.prune(better, "magnitude", density=0.2, scheme="budget", input_shape=(4, 4, 1))
    before, after = (cost.speedup(model, (4, 4, 1)).total.sparse for model in (even, better))
    assert 0.9 * before < after <= before
    assert kept(even) != kept(better)
    again = nttzoo.prune(nttzoo.sparsify(Small()), "logit_snip", density=0.2, scheme="budget", batch=IMAGES)
    assert kept(again) == kept(better)


def test_sparsify_leaves_excluded_layers_as_they_are():
    model = nttzoo.sparsify(Small(), exclude=["head", "st*"])
    assert [".".join(map(str, path)) for path in nn.masked_layers(model)] == ["blocks.0", "blocks.1"]
    assert type(model.head) is nnx.Linear
    np.testing.assert_array_equal(model(IMAGES), Small()(IMAGES))
    with pytest.raises(OptionError, match=r"no layer's path matches 'tail'\. The prunable layers are: .*stem"):
        nttzoo.sparsify(Small(), exclude=["tail"])
