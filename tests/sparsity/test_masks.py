import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nttzoo import nn
from nttzoo.errors import DensityError
from nttzoo.sparsity import allocation, masks, schemes


def identity(f, **_):
    return f


both = pytest.mark.parametrize("transform", [identity, jax.jit])


@both
@pytest.mark.parametrize(
    ("scores", "count", "kept"),
    [
        ([3, 1, 2, 2], 2, [1, 0, 1, 0]),  # tie between the 2s: lower index wins
        ([2, 2, 1, 3], 2, [1, 0, 0, 1]),
        ([0, 0, 0, 0], 1, [1, 0, 0, 0]),  # all tied
        ([0, 0, 0, 0], 3, [1, 1, 1, 0]),
        ([1, 2, 3, 4], 4, [1, 1, 1, 1]),
        ([1, 2, 3, 4], 0, [0, 0, 0, 0]),
        ([-1, -3, -2, -3], 3, [1, 1, 1, 0]),
        ([5, 1, 5, 5], 2, [1, 0, 1, 0]),
        ([np.inf, 1, np.inf, 0], 3, [1, 1, 1, 0]),
    ],
)
def test_keep_largest_by_hand(transform, scores, count, kept):
    keep = transform(masks.keep_largest)
    np.testing.assert_array_equal(keep(jnp.array(scores, float), count), np.array(kept, bool))
    square = keep(jnp.array(scores, float).reshape(2, 2), count)  # C order
    np.testing.assert_array_equal(square, np.array(kept, bool).reshape(2, 2))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.uint32, jnp.int32])
def test_keep_largest_takes_scores_of_other_types(dtype):
    np.testing.assert_array_equal(masks.keep_largest(jnp.array([3, 1, 2, 2], dtype), 2), [True, False, True, False])


def make_masks(scores, density, scheme="layerwise"):
    described = [schemes.Layer(path, values.shape, lambda: {}) for path, values in scores.items()]
    return masks.make_masks(scores, allocation.allocate(described, density, scheme))


def layers(**scores):
    return {(name,): jnp.array(values, float) for name, values in scores.items()}


def as_lists(made):
    return {path[0]: np.asarray(mask).astype(int).tolist() for path, mask in made.items()}


@both
def test_layerwise_by_hand(transform):
    scores = layers(a=[[1, 4], [3, 3]], b=[9, 9, 9, 9, 9, 9, 9, 8])
    made = transform(lambda s: make_masks(s, 0.5, "layerwise"))(scores)
    assert as_lists(made) == {"a": [[0, 1], [1, 0]], "b": [1, 1, 1, 1, 0, 0, 0, 0]}


@both
@pytest.mark.parametrize(
    ("density", "kept"),
    [
        # In order: 9 (b), 4 (a), then 3, 3 (a) and 3 (b), then 1 (a), 0 (b)
        (1 / 7, {"a": [[0, 0], [0, 0]], "b": [0, 1, 0]}),
        (3 / 7, {"a": [[0, 1], [1, 0]], "b": [0, 1, 0]}),  # within a layer the lower index wins
        (4 / 7, {"a": [[0, 1], [1, 1]], "b": [0, 1, 0]}),  # between layers the earlier one
        (5 / 7, {"a": [[0, 1], [1, 1]], "b": [1, 1, 0]}),
        (1, {"a": [[1, 1], [1, 1]], "b": [1, 1, 1]}),
    ],
)
def test_global_by_hand(transform, density, kept):
    scores = layers(a=[[1, 4], [3, 3]], b=[3, 9, 0])
    assert as_lists(transform(lambda s: make_masks(s, density, "global"))(scores)) == kept


finite = st.floats(-4, 4, width=16) | st.sampled_from([0.0, 1.0])  # coarse: many ties


@given(hnp.arrays(np.float32, (7, 3), elements=finite), st.floats(0.03, 1), st.booleans())
def test_exactly_the_rounded_number_is_kept_and_none_better_is_dropped(scores, density, jitted):
    count = round(density * scores.size)
    keep = jax.jit(masks.keep_largest) if jitted else masks.keep_largest
    kept = np.asarray(keep(jnp.asarray(scores), count))
    assert kept.sum() == count
    assert scores[kept].min(initial=np.inf) >= scores[~kept].max(initial=-np.inf)
    if 0 < count < scores.size:
        (tied,) = np.nonzero(scores.ravel() == scores[kept].min())
        assert np.all(np.diff(kept.ravel()[tied].astype(int)) <= 0), "of equal scores the first are kept"


@given(hnp.arrays(np.float32, 21, elements=finite), st.floats(0.01, 1))
def test_global_is_one_ranking_of_all_weights(values, density):
    count = round(density * 21)
    assume(count > 0)
    scores = {("a",): jnp.asarray(values[:6].reshape(2, 3)), ("b", 0): jnp.asarray(values[6:])}
    made = make_masks(scores, density, "global")
    kept = np.concatenate([np.asarray(made["a",]).ravel(), np.asarray(made["b", 0])])
    expected = np.zeros(21, bool)
    expected[np.argsort(-values, kind="stable")[:count]] = True
    np.testing.assert_array_equal(kept, expected)


@pytest.mark.parametrize("sizes", [[100], [100, 10], [10, 100], [7], [3], [1, 9], [1_000_003]])
def test_the_density_that_the_layerwise_error_suggests_is_the_smallest_that_works(sizes):
    scores = {(f"layer{size}",): np.zeros(size, np.float32) for size in sizes}
    with pytest.raises(DensityError, match=rf"'layer{min(sizes)}' \({min(sizes)} weights\) empty") as caught:
        make_masks(scores, 1e-9)
    suggested = float(re.search(r"at least ([\d.e-]+);", str(caught.value))[1])
    assert all(mask.any() for mask in make_masks(scores, suggested).values())
    if suggested > 2e-6:
        with pytest.raises(DensityError):
            make_masks(scores, suggested - 2e-6)


def test_global_may_empty_a_layer_but_not_the_network():
    made = make_masks(layers(a=[1, 2], b=[3, 4]), 0.5, "global")
    assert as_lists(made) == {"a": [0, 0], "b": [1, 1]}
    with pytest.warns(UserWarning, match=r"no weight survived in: a\."):
        masks.warn_of_empty_layers(made)
    with pytest.raises(DensityError, match="keeps none"):
        make_masks(layers(a=[1, 2], b=[3, 4]), 0.1, "global")


def test_one_compilation_serves_all_counts():
    traces = []

    @jax.jit
    def keep(scores, counts):
        traces.append(1)
        return masks.keep_in_groups(scores, [list(scores)], counts)

    scores = layers(a=[1, 4], b=[3, 2])
    assert as_lists(keep(scores, [1])) == {"a": [0, 1], "b": [0, 0]}
    assert as_lists(keep(scores, [3])) == {"a": [0, 1], "b": [1, 1]}
    assert len(traces) == 1


def test_density_report_counts_each_layer_and_all():
    init = {"kernel_init": nnx.initializers.ones, "rngs": nnx.Rngs(0)}
    model = nnx.Sequential(nn.Linear(4, 5, **init), nn.Conv(2, 3, (2, 2), **init))
    model.layers[0].mask[...] = jnp.eye(4, 5, dtype=bool)
    model.layers[1].mask[...] = jnp.zeros((2, 2, 2, 3), bool).at[0, 1, 1, 2].set(True)
    report = masks.density_report(model)
    assert [(x.name, x.size, x.kept, x.density) for x in (*report.layers, report.total)] == [
        ("layers.0", 20, 4, 0.2),
        ("layers.1", 24, 1, 1 / 24),
        ("total", 44, 5, 5 / 44),
    ]
    last = str(report).splitlines()[-1].split()
    assert last == ["total", "44", "5", "11.36%"]
