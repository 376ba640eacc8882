import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from layer_inputs import INIT, normal

from nttzoo import nn

TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}


def outputs_and_gradients(*layers_and_inputs):
    """For each layer, in one compilation: its outputs, and the gradients of a nonlinear function of them."""
    *layers, x = layers_and_inputs
    split = [nnx.split(layer, nnx.Param, ...) for layer in layers]

    def loss(params, x, graph, rest):
        y = nnx.merge(graph, params, rest)(x)
        return jnp.square(y.astype(jnp.float32) + 1).sum(), y

    @jax.jit
    def run(all_params, x):
        results = []
        for params, (graph, _, rest) in zip(all_params, split, strict=True):
            (_, y), (by_params, by_x) = jax.value_and_grad(loss, (0, 1), has_aux=True)(params, x, graph, rest)
            results.append({"outputs": y, "by inputs": by_x, **by_params})
        return results

    return run([params for _, params, _ in split], x)


def assert_same(layer, nnx_layer, x):
    ours, theirs = outputs_and_gradients(layer, nnx_layer, x)
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        got, expected = ours[name][...], expected[...]
        assert got.dtype == expected.dtype, name
        assert got.shape == expected.shape, name
        got, expected = np.float32(got), np.float32(expected)
        worst = max(TOLERANCE[str(value[...].dtype)] for value in theirs.values())
        np.testing.assert_allclose(got, expected, rtol=worst, atol=worst * max(1, abs(expected).max(initial=0)))


@st.composite
def convolutions(draw):
    space = draw(st.integers(1, 2))
    per_axis = lambda low, high: st.tuples(*[st.integers(low, high)] * space)  # noqa: E731
    groups = draw(st.integers(1, 2))
    pairs = st.tuples(*[st.tuples(st.integers(0, 2), st.integers(0, 2))] * space)
    named = ["SAME", "VALID", "CIRCULAR", "REFLECT", *["CAUSAL"] * (space == 1)]
    padding = draw(st.sampled_from(named) | st.integers(0, 2) | per_axis(0, 2) | pairs)
    options = {
        "in_features": groups * draw(st.integers(1, 2)),
        "out_features": groups * draw(st.integers(1, 2)),
        "kernel_size": draw(per_axis(1, 3)),
        "strides": draw(st.none() | st.integers(1, 3) | per_axis(1, 3)),
        "padding": padding,
        "kernel_dilation": draw(st.none() | st.integers(1, 2) | per_axis(1, 2)),
        "feature_group_count": groups,
        "use_bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from([None, jnp.float32, jnp.bfloat16, jnp.float16])),
        "param_dtype": draw(st.sampled_from([jnp.float32, jnp.bfloat16])),
    }
    if not isinstance(padding, str):
        options["input_dilation"] = draw(st.integers(1, 2) | per_axis(1, 2))
    batch = draw(st.sampled_from([(), (2,), (3,), (2, 1)]))
    return options, (*batch, *draw(per_axis(3, 6)), options["in_features"])


@settings(max_examples=15, phases=[Phase.generate])  # sizes are small already; shrinking compiles each
@given(convolutions())
def test_conv_with_a_full_mask_is_nnx_conv(drawn):
    options, shape = drawn
    ours, theirs = (kind(**options, **INIT, rngs=nnx.Rngs(0)) for kind in (nn.Conv, nnx.Conv))
    assert_same(ours, theirs, normal(1, shape))


@pytest.mark.parametrize("padding", ["SAME", "VALID", "CIRCULAR", "REFLECT", "CAUSAL", 1, [(2, 0)]])
def test_each_padding_of_a_1d_conv_is_that_of_nnx_conv(padding):
    options = {"strides": 2, "padding": padding, "kernel_dilation": 2}
    ours, theirs = (kind(3, 4, 3, **options, **INIT, rngs=nnx.Rngs(0)) for kind in (nn.Conv, nnx.Conv))
    assert_same(ours, theirs, normal(1, (2, 7, 3)))


@settings(max_examples=15, phases=[Phase.generate])  # sizes are small already; shrinking compiles each
@given(
    st.lists(st.integers(1, 3), max_size=2),
    st.integers(1, 4),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([None, jnp.float32, jnp.bfloat16, jnp.float16]),
    st.sampled_from([jnp.float32, jnp.bfloat16]),
    st.sampled_from([None, jnp.float32]),
)
def test_linear_with_a_full_mask_is_nnx_linear(batch, inputs, outputs, use_bias, dtype, param_dtype, preferred):
    options = {
        "use_bias": use_bias,
        "dtype": dtype,
        "param_dtype": param_dtype,
        "preferred_element_type": preferred,
    }
    ours, theirs = (kind(inputs, outputs, **options, **INIT, rngs=nnx.Rngs(0)) for kind in (nn.Linear, nnx.Linear))
    assert_same(ours, theirs, normal(1, (*batch, inputs)))


@pytest.mark.parametrize(
    ("inputs", "outputs", "options", "shape"),
    [
        (3, 4, {}, (2, 3)),
        (3, (4, 2), {}, (2, 5, 3)),
        ((2, 3), 4, {"axis": (-2, -1)}, (5, 2, 3)),
        ((2, 3), (2, 2), {"axis": (1, -1), "use_bias": False}, (5, 2, 4, 3)),
        (3, 4, {"batch_axis": {0: 2}}, (2, 5, 3)),
        ((2, 3), (4, 3), {"batch_axis": {0: 2}, "axis": (-2, -1), "dtype": jnp.bfloat16}, (2, 2, 3)),
        (3, 4, {"param_dtype": jnp.bfloat16}, (2, 3)),
    ],
)
def test_linear_general_with_a_full_mask_is_nnx_linear_general(inputs, outputs, options, shape):
    kinds = nn.LinearGeneral, nnx.LinearGeneral
    ours, theirs = (kind(inputs, outputs, **options, **INIT, rngs=nnx.Rngs(0)) for kind in kinds)
    assert_same(ours, theirs, normal(1, shape))


LAYERS = {
    "linear": ((nn.Linear, nnx.Linear), (4, 3), {}, (5, 4)),
    "linear_general": ((nn.LinearGeneral, nnx.LinearGeneral), ((2, 2), 3), {"axis": (-2, -1)}, (5, 2, 2)),
    "conv": ((nn.Conv, nnx.Conv), (2, 3, (2, 2)), {}, (2, 4, 4, 2)),
}


@pytest.fixture(params=LAYERS)
def half_pruned(request):
    """(a layer whose mask keeps about half, NNX's layer with zeros in those places, inputs)"""
    kinds, sizes, options, shape = LAYERS[request.param]
    layer, dense = (kind(*sizes, **options, **INIT, rngs=nnx.Rngs(0)) for kind in kinds)
    mask = normal(2, layer.kernel.shape) > 0
    layer.mask[...] = mask
    dense.kernel[...] = dense.kernel[...] * mask
    return layer, dense, normal(3, shape)


@pytest.mark.parametrize("junk", [np.nan, np.inf, -np.inf, 1e38])
def test_pruned_weights_are_zeros_to_the_forward_pass_whatever_they_hold(half_pruned, junk):
    layer, dense, x = half_pruned
    layer.kernel[...] = jnp.where(layer.mask[...], layer.kernel[...], junk)
    ours, theirs = outputs_and_gradients(layer, dense, x)
    np.testing.assert_allclose(ours["outputs"], theirs["outputs"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(ours["by inputs"], theirs["by inputs"], rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(layer.masked_kernel(), dense.kernel[...])


@pytest.mark.parametrize("junk", [0.5, np.nan])
def test_gradients_of_pruned_weights_are_exactly_zero_and_the_others_are_the_dense_ones(half_pruned, junk):
    layer, dense, x = half_pruned
    layer.kernel[...] = jnp.where(layer.mask[...], layer.kernel[...], junk)
    ours, theirs = (np.asarray(grads["kernel"][...]) for grads in outputs_and_gradients(layer, dense, x))
    kept = np.asarray(layer.mask[...])
    assert np.all(ours[~kept] == 0)
    assert np.all(theirs[~kept] != 0)
    np.testing.assert_allclose(ours[kept], theirs[kept], rtol=1e-5, atol=1e-5)


def test_adamw_never_revives_a_pruned_weight(half_pruned):
    layer, dense, x = half_pruned
    before, mask = np.asarray(layer.kernel[...]), np.asarray(layer.mask[...])
    optimizer = nnx.Optimizer(layer, optax.adamw(0.1, weight_decay=0.5), wrt=nnx.Param)

    @nnx.jit
    def step(layer, optimizer):
        optimizer.update(layer, nnx.grad(lambda m: jnp.square(m(x) - 1).sum())(layer))

    for _ in range(4):
        step(layer, optimizer)
    after = np.asarray(layer.kernel[...])
    assert np.all(after[~mask] != before[~mask]), "weight decay reaches pruned weights, so the mask has work to do"
    np.testing.assert_array_equal(layer.mask[...], mask)
    dense.kernel[...], dense.bias[...] = jnp.where(mask, after, 0), layer.bias[...]
    np.testing.assert_allclose(layer(x), dense(x), rtol=1e-5, atol=1e-5)


def test_masks_are_not_parameters():
    model = nnx.Sequential(nn.Linear(2, 3, rngs=nnx.Rngs(0)), nn.Conv(1, 1, (2,), rngs=nnx.Rngs(0)))
    params = nnx.to_flat_state(nnx.state(model, nnx.Param)).paths
    masks = nnx.to_flat_state(nnx.state(model, nn.Mask)).paths
    assert {path[-1] for path in params} == {"kernel", "bias"}
    assert {path[-1] for path in masks} == {"mask"}
    assert (len(params), len(masks)) == (4, 2)


def test_fan_in_counts_the_weights_into_one_unit():
    options = {**INIT, "rngs": nnx.Rngs(0)}
    assert nn.Linear(5, 3, **options).fan_in == 5
    assert nn.Conv(4, 6, (3, 2), **options).fan_in == 3 * 2 * 4
    assert nn.Conv(4, 6, (3, 2), feature_group_count=2, **options).fan_in == 3 * 2 * 2
    assert nn.LinearGeneral((2, 3), (4, 5), axis=(-2, -1), **options).fan_in == 6
    assert nn.LinearGeneral(3, 4, batch_axis={0: 7}, **options).fan_in == 3
