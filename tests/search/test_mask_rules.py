import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import paper

import nttzoo
from nttzoo import architectures
from nttzoo.errors import UnknownName
from nttzoo.nn import masked_layers, set_masks
from nttzoo.search import SearchConfig, recipes, transfer
from nttzoo.search.mask_rules import MASK_RULES
from nttzoo.sparsity import masks, paths, pruning, uses

pytestmark = pytest.mark.usefixtures("x64")


class Two(nnx.Module):
    """2 inputs, 3 hidden units, 1 output."""

    def __init__(self):
        self.first = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        self.second = nnx.Linear(3, 1, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)))


def two_layers(first_mask, second_mask, first=None, second=None):
    model = nttzoo.sparsify(Two())
    model.first.kernel[...] = jnp.array(first or [[1.0, 2.0, 3.0], [4.0, 5.0, -6.0]], jnp.float32)
    model.second.kernel[...] = jnp.array(second or [[1.0], [2.0], [3.0]], jnp.float32)
    set_masks(model, {("first",): jnp.array(first_mask, bool), ("second",): jnp.array(second_mask, bool)})
    return model


def test_places_on_a_path_by_hand():
    # Unit 0 has an input and no output, unit 1 both, unit 2 an output and no input.
    model = two_layers([[1, 1, 0], [0, 0, 0]], [[0], [1], [1]])
    used = {path[0]: np.asarray(score) > 0 for path, score in paths.path_weights(model, (2,)).items()}
    # A weight into unit 1 or 2 would be on a path; so would one from unit 0 or 1 to the output.
    np.testing.assert_array_equal(used["first"], [[0, 1, 1], [0, 1, 1]])
    np.testing.assert_array_equal(used["second"], [[1], [1], [0]])


def test_connected_ranks_by_magnitude_among_places_on_a_path():
    model = two_layers([[1, 1, 0], [0, 0, 0]], [[0], [1], [1]])
    ranked = MASK_RULES["connected"](model, (2,), jnp.array(True))[("first",)]
    order = np.argsort(-np.asarray(ranked), axis=None)
    # |w| = 6, 5, 3, 2 into units 1 and 2; then 4 and 1 into unit 0.
    np.testing.assert_array_equal(order, [5, 4, 2, 1, 3, 0])


class TwoOutputs(nnx.Module):
    """2 inputs, 3 hidden units, 2 outputs."""

    def __init__(self):
        self.first = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
        self.second = nnx.Linear(3, 2, rngs=nnx.Rngs(0))

    def __call__(self, x):
        return self.second(nnx.relu(self.first(x)))


def test_covering_by_hand():
    # Unit 0 leads to output 0 only, unit 1 nowhere, unit 2 to output 1, but it has no input.
    model = nttzoo.sparsify(TwoOutputs())
    model.first.kernel[...] = jnp.array([[1, 2, 3], [4, 5, -6]], jnp.float32)
    model.second.kernel[...] = jnp.array([[5, 1], [4, 2], [3, 6]], jnp.float32)
    first, second = [[1, 1, 0], [0, 0, 0]], [[1, 0], [0, 0], [0, 1]]
    set_masks(model, {("first",): jnp.array(first, bool), ("second",): jnp.array(second, bool)})
    ranked = MASK_RULES["covering"](model, (2,), jnp.array(True))
    # The largest |w| is 6. A weight that keeps an output connected gets 12 more: output 0 has a path through unit 0,
    # output 1 needs the largest input of unit 2. Other places on a path, into a unit with inputs, get 6.
    np.testing.assert_array_equal(ranked[("first",)], [[1 + 12, 2, 3], [4 + 6, 5, 6 + 12]])
    np.testing.assert_array_equal(ranked[("second",)], [[5 + 12, 1 + 6], [4 + 6, 2 + 6], [3, 6 + 12]])
    # While the density falls, paths take the largest weights, surviving or not, and unit 2 may get all its inputs back.
    ranked = MASK_RULES["covering"](model, (2,), jnp.array(False))
    np.testing.assert_array_equal(ranked[("first",)], [[1 + 6, 2, 3 + 6], [4 + 12, 5, 6 + 12]])


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("kept", [(30, 8, 6), (12, 6, 5), (6, 6, 6), (5, 5, 5)])
def test_covering_connects_every_output_whatever_the_weights(kept, settled):
    rng = np.random.default_rng(0)
    model = nttzoo.sparsify(Chain((10, 8, 7, 5)))
    layers = masked_layers(model)
    for _ in range(10):
        for layer in layers.values():
            layer.kernel[...] = jnp.asarray(rng.normal(size=layer.kernel.shape), jnp.float32)
        ranked = MASK_RULES["covering"](model, (10,), jnp.array(settled))
        counts = zip(ranked, kept, strict=True)
        set_masks(model, {path: masks.keep_largest(ranked[path], count) for path, count in counts})
        assert connected_outputs(model).all()


class Chain(nnx.Module):
    """Linear layers with rectifiers between them."""

    def __init__(self, widths):
        rngs = nnx.Rngs(0)
        pairs = itertools.pairwise(widths)
        self.layers = nnx.List([nnx.Linear(one, two, rngs=rngs) for one, two in pairs])

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


def connected_outputs(model):
    """Which outputs of a chain of linear layers have a path from any input."""
    reached = 1
    for layer in masked_layers(model).values():
        mask = np.asarray(layer.mask[...])
        reached = (np.broadcast_to(reached, len(mask)) @ mask) > 0
    return reached


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["layerwise", "global"])
def test_a_search_by_covering_reaches_every_output(scheme):
    student = search(schemes=(scheme,), mask_rule="covering")
    assert connected_outputs(student.model).all()
    assert dead(student) < dead(search(schemes=(scheme,))) / 2


NETWORKS = {"lenet5": (16, 16, 1), "gru": (4, 5, 1), "ds_cnn": (6, 5, 1), "resnet20": (8, 8, 3)}


@pytest.mark.parametrize("name", NETWORKS)
def test_all_places_of_a_dense_network_are_on_a_path(name):
    """Behind norms and in recurrences too, where derivatives have any sign."""
    shape = NETWORKS[name]
    model = architectures.create(name, num_classes=3, input_shape=shape, rngs=0)
    found = jax.jit(lambda: uses.places_on_paths(model, shape))()
    assert all(places.all() for places in found.values()), {path: places.mean() for path, places in found.items()}


@pytest.mark.parametrize("rule", sorted(MASK_RULES))
def test_every_rule_ranks_the_weights_of_a_recurrent_network(rule):
    model = architectures.create("gru", num_classes=3, input_shape=NETWORKS["gru"], rngs=0)
    pruning.prune(model, "random", density=0.1, rngs=0)
    graph, state = nnx.split(model)
    rank = MASK_RULES[rule]
    ranked = jax.jit(lambda state: rank(nnx.merge(graph, state), NETWORKS["gru"], jnp.array(True)))(state)
    shapes = {path: layer.kernel.shape for path, layer in masked_layers(model).items()}
    assert {path: score.shape for path, score in ranked.items()} == shapes
    assert all(jnp.isfinite(score).all() for score in ranked.values())


def test_flow_by_hand():
    model = two_layers([[1, 1, 0], [0, 1, 0]], [[0], [1], [0]])
    found = MASK_RULES["flow"](model, (2,), jnp.array(True))
    # Averages: 3 survivors for 3 units are weights of 1; 1 survivor for 1 output is a weight of 1. Unit 1 gets 2 from
    # the inputs of ones, unit 0 gets 1.
    np.testing.assert_allclose(found[("first",)], [[0, 2, 0], [0, 5, 0]])
    np.testing.assert_allclose(found[("second",)], [[1], [4], [0]])


@pytest.mark.parametrize("name", ["lenet300", "lenet5"])
@pytest.mark.parametrize("density", [0.02, 0.1])
def test_survivors_on_a_path_are_those_that_are_not_dead(name, density):
    shape = {"lenet300": (6, 6, 1), "lenet5": (16, 16, 1)}[name]
    model = pruning.prune(paper(name, shape), "random", density=density, rngs=1)
    used, alive = paths.path_weights(model, shape), uses.weights_on_paths(model, shape)
    for path, layer in masked_layers(model).items():
        np.testing.assert_array_equal((used[path] > 0) & layer.mask[...], alive[path])
    assert any((~alive[path] & layer.mask[...]).any() for path, layer in masked_layers(model).items()), "some are dead"


@functools.cache
def search(schemes=("layerwise",), **change):
    recipe = recipes.Recipe(
        name="mine", epochs=2, batch_size=8, learning_rate=1e-3, kernel_weight=1e-3, weight_decay=0.0, mask_every=5
    )
    config = SearchConfig(densities=(0.05,), schemes=schemes, recipe=recipe.change(**change))
    images = np.random.default_rng(0).normal(size=(200, 6, 6, 1)).astype(np.float32)
    return transfer(paper("lenet300", (6, 6, 1)), images, config, progress=False).students[0]


def dead(student):
    alive = uses.weights_on_paths(student.model, (6, 6, 1))
    return sum(int((layer.mask[...] & ~alive[path]).sum()) for path, layer in masked_layers(student.model).items())


def test_a_search_by_connected_leaves_fewer_dead_weights():
    assert dead(search(mask_rule="connected")) < dead(search()) / 2


@pytest.mark.parametrize(
    "change",
    [{"mask_momentum": 0.9}, {"output_loss": "reverse_kl"}, {"normalize_kernels": True}, {"active_from": 0.5}],
    ids=lambda change: next(iter(change)),
)
def test_each_variant_searches_at_the_same_density_and_differs(change):
    plain, varied = search(), search(**change)
    counts = [masks.density_report(student.model).total.kept for student in (plain, varied)]
    assert counts[0] == counts[1]
    assert varied.kernel_after != plain.kernel_after
    assert varied.target_after < varied.target_before


@pytest.mark.slow
def test_active_from_the_start_is_active_and_from_the_end_is_all():
    late, active = search(active_from=0.0), search(tangents="active")
    for ours, theirs in zip(*(jax.tree.leaves(nnx.state(one.model, nnx.Param)) for one in (late, active)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_unknown_rules_list_what_there_is():
    with pytest.raises(UnknownName, match=r"no mask rule 'conected'\. Did you mean 'connected'"):
        recipes.find("ntt", "lenet300", "mnist").change(mask_rule="conected")
