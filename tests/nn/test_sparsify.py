import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from layer_inputs import INIT, normal

import nttzoo
from nttzoo import nn
from nttzoo.errors import ModelError


def assert_same_states(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


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
