import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import nttzoo
from nttzoo import nn
from nttzoo.errors import ModelError

TOLERANCE = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 6e-2}


def normal(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


# Initializers that, unlike NNX's, need not be compiled for each shape.
INIT = {
    name: lambda key, shape, dtype, seed=seed: jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype)
    for seed, name in enumerate(["kernel_init", "bias_init"])
}


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


def assert_same_states(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


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


class Mlp(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(4, 5, rngs=rngs, **INIT)
        self.out = nnx.Linear(5, 2, rngs=rngs, **INIT)

    def __call__(self, x):
        return self.out(jax.nn.relu(self.hidden(x)))


class Twice(nnx.Module):
    """One layer, used twice, known under three names."""

    def __init__(self, rngs):
        self.z = nnx.Linear(4, 4, rngs=rngs, **INIT)
        self.again = nnx.List([self.z, nnx.Linear(4, 4, rngs=rngs)])
        self.b = self.z

    def __call__(self, x):
        return self.b(jnp.tanh(self.again[1](jnp.tanh(self.z(x)))))


def step(cell, x):
    carry = jax.tree.map(lambda c: c + 0.5, cell.initialize_carry(x.shape, nnx.Rngs(0)))
    return cell(carry, x)


MODELS = {
    "mlp": (Mlp, (3, 4), 2, Mlp.__call__),
    "sequential": (
        lambda rngs: nnx.Sequential(
            nnx.Conv(1, 2, (3, 3), strides=2, rngs=rngs),
            nnx.relu,
            lambda x: x.reshape(len(x), -1),
            nnx.Linear(8, 3, rngs=rngs),
        ),
        (2, 4, 4, 1),
        2,
        lambda m, x: m(x),
    ),
    "attention": (
        lambda rngs: nnx.MultiHeadAttention(2, 4, 6, decode=False, rngs=rngs),
        (2, 3, 4),
        4,
        lambda m, x: m(x),
    ),
    "gru": (lambda rngs: nnx.GRUCell(4, 3, rngs=rngs), (2, 4), 2, step),
    "lstm": (lambda rngs: nnx.LSTMCell(4, 3, rngs=rngs), (2, 4), 8, step),
    "a layer used twice": (Twice, (3, 4), 2, Twice.__call__),
    "one layer": (lambda rngs: nnx.Linear(4, 3, rngs=rngs), (2, 4), 1, lambda m, x: m(x)),
}


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_sparsify_keeps_weights_and_outputs(name, copy):
    make, shape, layers, run = MODELS[name]
    dense = make(nnx.Rngs(0))
    x = normal(1, shape)
    expected, weights = run(dense, x), jax.tree.map(np.array, nnx.state(dense))
    sparse = nttzoo.sparsify(dense, copy=copy)
    assert (sparse is dense) != copy
    assert len(nn.masked_layers(sparse)) == layers
    assert all(layer.mask[...].all() for layer in nn.masked_layers(sparse).values())
    assert_same_states(nnx.state(sparse, nnx.Not(nn.Mask)), weights)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), run(sparse, x), expected)


@pytest.mark.parametrize("name", MODELS)
def test_masks_of_a_sparsified_model_change_its_outputs(name):
    make, shape, _, run = MODELS[name]
    sparse = nttzoo.sparsify(make(nnx.Rngs(0)))
    x = normal(1, shape)
    full = jax.tree.leaves(run(sparse, x))
    for layer in nn.masked_layers(sparse).values():
        layer.mask[...] = jnp.zeros_like(layer.mask[...])
        assert any(np.any(a != b) for a, b in zip(full, jax.tree.leaves(run(sparse, x)), strict=True))
        layer.mask[...] = jnp.ones_like(layer.mask[...])


def test_a_copy_shares_nothing_with_the_original():
    dense = Mlp(nnx.Rngs(0))
    before = jax.tree.map(np.array, nnx.state(dense))
    sparse = nttzoo.sparsify(dense)
    for layer in nn.masked_layers(sparse).values():
        layer.mask[...] = jnp.zeros_like(layer.mask[...])
        layer.kernel[...] = layer.kernel[...] + 1
    assert type(dense.hidden) is type(dense.out) is nnx.Linear
    assert_same_states(nnx.state(dense), before)


def test_a_shared_layer_stays_shared():
    sparse = nttzoo.sparsify(Twice(nnx.Rngs(0)))
    assert sparse.z is sparse.b is sparse.again[0]
    assert sparse.z is not sparse.again[1]
    assert isinstance(sparse.z, nn.Linear)


def test_sparsifying_again_keeps_the_masks():
    once = nttzoo.sparsify(Mlp(nnx.Rngs(0)))
    once.out.mask[...] = jnp.eye(5, 2, dtype=bool)
    twice = nttzoo.sparsify(once)
    assert_same_states(nnx.state(twice), nnx.state(once))
    assert nttzoo.sparsify(once, copy=False) is once
    np.testing.assert_array_equal(once.out.mask[...], np.eye(5, 2, dtype=bool))


def test_the_mask_option_of_nnx_conv_is_folded_in():
    mask = jnp.array([[0.0], [0.5], [1.0]])[..., None] * jnp.ones((3, 1, 2))
    dense = nnx.Conv(1, 2, (3,), mask=mask, rngs=nnx.Rngs(0))
    x = normal(1, (2, 6, 1))
    for sparse in (nttzoo.sparsify(dense), nn.Conv(1, 2, (3,), mask=mask, rngs=nnx.Rngs(0))):
        np.testing.assert_allclose(sparse(x), dense(x), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(sparse.mask[...], mask != 0)
    with pytest.raises(ModelError, match=r"\(3, 1\).*\(3, 1, 2\)"):
        nn.Conv(1, 2, (3,), mask=jnp.ones((3, 1)), rngs=nnx.Rngs(0))


def test_a_convolution_of_ones_own_is_kept():
    calls = []

    def own(*args, **kwargs):
        calls.append(args)
        return jax.lax.conv_general_dilated(*args, **kwargs)

    sparse = nttzoo.sparsify(nnx.Conv(1, 2, (3,), conv_general_dilated=own, rngs=nnx.Rngs(0)))
    sparse(jnp.ones((1, 4, 1)))
    assert len(calls) == 1


class OwnForward(nnx.Conv):
    def __call__(self, inputs, out_sharding=None):
        return 2 * super().__call__(inputs, out_sharding=out_sharding)


@pytest.mark.parametrize(
    "layer", [nnx.LoRALinear(3, 4, lora_rank=2, rngs=nnx.Rngs(0)), OwnForward(3, 4, (1,), rngs=nnx.Rngs(0))]
)
def test_a_subclass_with_its_own_forward_pass_is_left_dense_and_named(layer):
    model = nnx.Sequential(layer, nnx.Linear(4, 2, rngs=nnx.Rngs(1)))
    with pytest.warns(UserWarning, match=rf"layers\.0 \({type(layer).__name__}\)"):
        sparse = nttzoo.sparsify(model)
    x = normal(0, (2, 5, 3))
    np.testing.assert_array_equal(sparse(x), model(x))
    assert list(nn.masked_layers(sparse)) == [("layers", 1)]


def pruned_mlp(seed=0):
    model = nttzoo.sparsify(Mlp(nnx.Rngs(seed)))
    for layer in nn.masked_layers(model).values():
        layer.mask[...] = normal(seed, layer.mask.shape) > 0
    return model


def by_hand(model, x):
    hidden = np.maximum(x @ (model.hidden.kernel[...] * model.hidden.mask[...]) + model.hidden.bias[...][None], 0)
    return hidden @ (model.out.kernel[...] * model.out.mask[...]) + model.out.bias[...][None]


def test_nnx_jit_applies_the_masks():
    model, x = pruned_mlp(), normal(1, (3, 4))
    np.testing.assert_allclose(nnx.jit(lambda m, x: m(x))(model, x), by_hand(model, x), rtol=1e-5, atol=1e-6)


def test_nnx_grad_is_the_masked_gradient_of_the_masked_function():
    model, x = pruned_mlp(), normal(1, (3, 4))
    grads = nnx.grad(lambda m: m(x).sum())(model)

    def loss(kernel):
        hidden = jax.nn.relu(x @ kernel + model.hidden.bias[...][None])
        return (hidden @ jnp.where(model.out.mask[...], model.out.kernel[...], 0)).sum()

    expected = jax.grad(loss)(model.hidden.kernel[...] * model.hidden.mask[...]) * model.hidden.mask[...]
    np.testing.assert_allclose(grads.hidden.kernel[...], expected, rtol=1e-5, atol=1e-6)
    assert "mask" not in grads.hidden


def test_nnx_vmap_runs_many_models_with_masks_of_their_own():
    models = [pruned_mlp(seed) for seed in range(3)]
    graph, first = nnx.split(models[0])
    stacked = nnx.merge(graph, jax.tree.map(lambda *v: jnp.stack(v), first, *map(nnx.state, models[1:])))
    x = normal(1, (2, 4))
    outputs = nnx.vmap(lambda m, x: m(x), in_axes=(0, None))(stacked, x)
    for model, got in zip(models, outputs, strict=True):
        np.testing.assert_allclose(got, by_hand(model, x), rtol=1e-5, atol=1e-6)


def test_split_and_merge_bring_the_masks_along():
    model, x = pruned_mlp(), normal(1, (2, 4))
    merged = nnx.merge(*nn.split_params(model))
    assert type(merged.hidden) is nn.Linear
    np.testing.assert_array_equal(merged(x), model(x))
    assert_same_states(nnx.state(merged, nn.Mask), nnx.state(model, nn.Mask))


def test_masked_layers_come_in_path_order_and_shared_ones_once():
    assert list(nn.masked_layers(nttzoo.sparsify(Twice(nnx.Rngs(0))))) == [("again", 0), ("again", 1)]
    assert list(nn.masked_layers(pruned_mlp())) == [("hidden",), ("out",)]


@pytest.mark.parametrize("model", [Mlp(nnx.Rngs(0)), nnx.BatchNorm(3, rngs=nnx.Rngs(0))])
def test_a_model_without_prunable_layers_is_told_how_to_get_them(model):
    with pytest.raises(ModelError, match=rf"{type(model).__name__} has no prunable layers.*sparsify"):
        nn.masked_layers(model)


def test_set_masks_replaces_only_the_named_masks():
    model = pruned_mlp()
    hidden = np.asarray(model.hidden.mask[...])
    nn.set_masks(model, {("out",): jnp.eye(5, 2, dtype=bool)})
    np.testing.assert_array_equal(model.out.mask[...], np.eye(5, 2, dtype=bool))
    np.testing.assert_array_equal(model.hidden.mask[...], hidden)


def test_path_names():
    assert nn.path_name(("layers", 0, "out")) == "layers.0.out"
    assert nn.path_name(()) == "(the model itself)"


def test_densify_undoes_sparsify():
    class Mine(nnx.Module):
        def __init__(self, rngs):
            self.conv = nnx.Conv(2, 4, (3, 3), rngs=rngs)
            self.general = nnx.LinearGeneral((4,), (2, 3), rngs=rngs)
            self.head = nnx.Linear(3, 2, rngs=rngs)

        def __call__(self, x):
            return self.head(self.general(self.conv(x)))

    sparse = nttzoo.prune(nttzoo.sparsify(Mine(nnx.Rngs(0))), "magnitude", density=0.3)
    dense = nttzoo.densify(sparse)
    assert [type(layer) for layer in (dense.conv, dense.general, dense.head)] == [
        nnx.Conv,
        nnx.LinearGeneral,
        nnx.Linear,
    ]
    assert not nnx.to_flat_state(nnx.state(dense, nttzoo.nn.Mask)).paths
    assert int((dense.conv.kernel[...] != 0).sum()) == round(0.3 * 72)
    x = jax.random.normal(jax.random.key(0), (2, 5, 5, 2))
    np.testing.assert_allclose(dense(x), sparse(x), rtol=1e-5, atol=1e-6)
