import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import nttzoo
from nttzoo import nn
from nttzoo.errors import ModelError, ShapeError
from nttzoo.ops.pooling import max_pool
from nttzoo.sparsity import cost

ONES = {"kernel_init": nnx.initializers.ones}


def relu(x):
    return jnp.maximum(x, 0)


def flatten(x):
    return x.reshape(len(x), -1)


def linear(inputs, outputs, **options):
    return nn.Linear(inputs, outputs, rngs=nnx.Rngs(0), **ONES, **options)


def conv(inputs, outputs, window, **options):
    return nn.Conv(inputs, outputs, window, rngs=nnx.Rngs(0), **ONES, **options)


@pytest.mark.parametrize(
    ("model", "shape", "multiply_adds"),
    [
        (linear(5, 3), (5,), 15),
        (linear(5, 3), (4, 5), 4 * 15),
        # 3x3 windows fit 6 x 4 places of 8 x 6 images
        (conv(2, 5, (3, 3), padding="VALID"), (8, 6, 2), 24 * 3 * 3 * 2 * 5),
        (conv(2, 5, (3, 3)), (8, 6, 2), 48 * 3 * 3 * 2 * 5),
        (conv(2, 5, (3, 3), strides=2, padding="VALID"), (8, 6, 2), 3 * 2 * 3 * 3 * 2 * 5),
        (conv(2, 6, (3, 3), feature_group_count=2, padding="VALID"), (8, 6, 2), 24 * 3 * 3 * 1 * 6),
        (conv(2, 5, (3,), kernel_dilation=2, padding="VALID"), (9, 2), 5 * 3 * 2 * 5),
        (nn.LinearGeneral((2, 3), (4, 5), axis=(-2, -1), rngs=nnx.Rngs(0), **ONES), (7, 2, 3), 7 * 2 * 3 * 4 * 5),
        (nn.LinearGeneral(3, (2, 4), rngs=nnx.Rngs(0), **ONES), (3,), 3 * 8),
    ],
    ids=["linear", "positions", "valid", "same", "strides", "groups", "dilation", "general", "general positions"],
)
def test_multiply_adds_of_one_layer_by_hand(model, shape, multiply_adds):
    assert cost.speedup(model, shape).total == cost.LayerCost("total", *[multiply_adds] * 3)
    model = nnx.clone(model)
    nn.set_masks(model, {(): jnp.zeros(model.mask.shape, bool).at[(0,) * model.mask.ndim].set(True)})
    assert cost.speedup(model, shape).total.sparse == multiply_adds // model.mask.size


class Shared(nnx.Module):
    def __init__(self):
        self.twice = linear(4, 4)
        self.once = linear(4, 2)
        self.never = linear(9, 9)

    def __call__(self, x):
        return self.once(relu(self.twice(relu(self.twice(x)))))


def test_a_shared_layer_counts_as_often_as_it_is_called():
    model = Shared()
    model.twice.mask[...] = jnp.eye(4, dtype=bool)
    counted = {layer.name: (layer.dense, layer.sparse, layer.alive) for layer in cost.speedup(model, (4,)).layers}
    assert counted == {"never": (0, 0, 0), "once": (8, 8, 8), "twice": (32, 8, 8)}


def test_a_weight_of_a_shared_layer_lives_if_any_of_its_calls_needs_it():
    model = Shared()
    # Once: only unit 0 counts. Twice: 1 -> 0 and 2 -> 1, so that 2 -> 1 -> 0 needs both; 0 -> 3 leads nowhere.
    model.once.mask[...] = jnp.zeros((4, 2), bool).at[0].set(True)
    model.twice.mask[...] = jnp.zeros((4, 4), bool).at[[1, 2, 0], [0, 1, 3]].set(True)
    counted = {layer.name: (layer.sparse, layer.alive) for layer in cost.speedup(model, (4,)).layers}
    assert counted == {"never": (0, 0), "once": (2, 2), "twice": (6, 4)}


WIDTHS = (4, 3, 4, 2)


def weights_on_paths(masks):
    """Follows every path from an input to an output, one by one."""
    used = [np.zeros_like(mask) for mask in masks]
    for path in itertools.product(*map(range, WIDTHS)):
        steps = list(itertools.pairwise(path))
        if all(mask[step] for mask, step in zip(masks, steps, strict=True)):
            for mask, step in zip(used, steps, strict=True):
                mask[step] = True
    return used


random_masks = st.integers(0, 2**32).map(np.random.default_rng).flatmap(
    lambda rng: st.floats(0.1, 0.9).map(lambda p: [rng.random(s) < p for s in itertools.pairwise(WIDTHS)])
) | st.tuples(*(hnp.arrays(bool, shape) for shape in itertools.pairwise(WIDTHS)))


@given(random_masks, st.booleans())
def test_dead_weights_are_those_on_no_path(masks, use_bias):
    first, second, third = (linear(i, o, use_bias=use_bias) for i, o in itertools.pairwise(WIDTHS))
    model = nnx.Sequential(first, relu, second, relu, third)
    for layer, mask in zip((first, second, third), masks, strict=True):
        layer.mask[...] = jnp.asarray(mask)
    counted = cost.speedup(model, WIDTHS[:1]).layers
    assert [layer.sparse for layer in counted] == [mask.sum() for mask in masks]
    assert [layer.alive for layer in counted] == [mask.sum() for mask in weights_on_paths(masks)]


def test_what_weights_hold_does_not_matter():
    model = nnx.Sequential(linear(3, 3), relu, linear(3, 2))
    model.layers[0].kernel[...] = -model.layers[0].kernel[...]  # every unit is off
    model.layers[2].kernel[...] = 0 * model.layers[2].kernel[...]
    model.layers[0].mask[...] = jnp.eye(3, dtype=bool)
    before = np.array(model.layers[0].kernel[...])
    assert [layer.alive for layer in cost.speedup(model, (3,)).layers] == [3, 6]
    np.testing.assert_array_equal(model.layers[0].kernel[...], before)


def test_dead_channels_of_a_cnn_by_hand():
    model = nnx.Sequential(
        conv(1, 3, (3, 3), padding="VALID"), relu, conv(3, 2, (3, 3), padding="VALID"), max_pool, flatten, linear(8, 2)
    )
    first, second, last = model.layers[0], model.layers[2], model.layers[5]
    # 8x8 images: 6x6 after the first convolution, 4x4 after the second, 2x2 after the pool.
    first.mask[...] = first.mask[...].at[..., 2].set(False)  # nothing enters channel 2
    second.mask[...] = second.mask[...].at[:, :, 1].set(False)  # nothing leaves channel 1
    # The flattened features are [2, 2, channel]; channel 1 of the second convolution is not looked at.
    last.mask[...] = last.mask[...].at[1::2].set(False)
    counted = {layer.name: (layer.dense, layer.sparse, layer.alive) for layer in cost.speedup(model, (8, 8, 1)).layers}
    assert counted == {
        "layers.0": (36 * 9 * 3, 36 * 9 * 2, 36 * 9),
        "layers.2": (16 * 9 * 6, 16 * 9 * 4, 16 * 9),
        "layers.5": (16, 8, 8),
    }


@pytest.mark.slow
def test_conv4_at_1_percent_layerwise_saves_a_factor_of_100(thin_conv4):
    _, counted = thin_conv4
    assert counted.theoretical == pytest.approx(100, rel=0.01)
    assert counted.without_dead >= counted.theoretical
    assert counted.total.dense == sum(layer.dense for layer in counted.layers)
    for layer in counted.layers:
        assert 0 < layer.alive <= layer.sparse <= layer.dense


def test_dropout_does_not_hide_weights():
    model = nnx.Sequential(linear(50, 1), nnx.Dropout(0.999, rngs=nnx.Rngs(0)), linear(1, 1))
    assert cost.speedup(model, (50,)).total.alive == 51


def test_a_model_that_does_not_know_its_input_shape_must_be_told():
    with pytest.raises(ShapeError, match=r"Linear does not say its input shape: give input_shape"):
        cost.speedup(linear(3, 2))


def test_an_input_shape_that_does_not_fit_is_refused():
    with pytest.raises(ShapeError, match=r"does not take an image of shape \(4,\)"):
        cost.speedup(linear(3, 2), (4,))


def test_a_dense_model_is_told_to_sparsify():
    with pytest.raises(ModelError, match="sparsify"):
        cost.speedup(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), (3,))


class Wrapped(nnx.Module):
    """A layer with 9 weights, called by a transform that copies it."""

    def __init__(self, call):
        self.inner, self.call = linear(3, 3), nnx.static(call)

    def __call__(self, x):
        return self.call(self.inner, x)


def in_a_branch(layer, x):
    return nnx.cond(x.sum() > 0, lambda layer, x: layer(x), lambda layer, x: -layer(x), layer, x)


def five_times(layer, x):
    return nnx.scan(lambda x, layer: relu(layer(x)), in_axes=(nnx.Carry, None), out_axes=nnx.Carry, length=5)(x, layer)


def carried_five_times(layer, x):
    step = nnx.scan(lambda both: (both[0], relu(both[0](both[1]))), in_axes=nnx.Carry, out_axes=nnx.Carry, length=5)
    return step((layer, x))[1]


@pytest.mark.parametrize(
    ("call", "times"),
    [
        (nnx.jit(lambda layer, x: layer(x)), 1),
        (nnx.remat(lambda layer, x: layer(x)), 1),
        (nnx.vmap(lambda layer, x: layer(x), in_axes=(None, 0)), 1),
        (five_times, 5),
        (carried_five_times, 5),
        (lambda layer, x: jax.lax.fori_loop(0, 4, lambda i, x: relu(layer(x)), x), 4),
        (lambda layer, x: jax.vmap(jax.grad(lambda x: jnp.tanh(layer(x)).sum()))(x), 2),  # there and back
    ],
    ids=["jit", "remat", "vmap", "scan", "scan with a carried layer", "fori", "grad"],
)
def test_layers_inside_transforms_count_once_per_step(call, times):
    model = Wrapped(call)
    model.inner.mask[...] = jnp.eye(3, dtype=bool)
    assert cost.speedup(model, (3,)).total == cost.LayerCost("total", 9 * times, 3 * times, 3 * times)


def test_recurrent_layers_count_once_per_step():
    model = nttzoo.sparsify(nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))))
    counted = {layer.name: (layer.dense, layer.alive) for layer in cost.speedup(model, (7, 3)).layers}
    # At the first step the state is zero whatever the image is; from then on every weight matters.
    assert counted == {"cell.dense_h": (7 * 4 * 12,) * 2, "cell.dense_i": (7 * 3 * 12,) * 2}


@nnx.vmap(in_axes=0, out_axes=0)
def stacked(key):
    return nnx.Linear(4, 4, use_bias=False, rngs=nnx.Rngs(key))


class Stack(nnx.Module):
    """Three layers in one, one after the other or side by side."""

    def __init__(self, call):
        self.layers, self.call = stacked(jax.random.split(jax.random.key(0), 3)), nnx.static(call)

    def __call__(self, x):
        return self.call(self.layers, x)


@pytest.mark.parametrize(
    ("call", "alive"),
    [
        # The weight 0 -> 1 of the second layer leads on to nothing: the third keeps 0 -> 0 only.
        (nnx.scan(lambda layer, x: relu(layer(x)), in_axes=(0, nnx.Carry), out_axes=nnx.Carry), 3),
        (lambda layers, x: nnx.vmap(lambda layer, x: layer(x), in_axes=(0, None))(layers, x).sum(0), 4),
    ],
    ids=["scan", "vmap"],
)
def test_stacked_layers_have_weights_of_their_own_in_every_step(call, alive):
    model = nttzoo.sparsify(Stack(call))
    model.layers.mask[...] = jnp.zeros((3, 4, 4), bool).at[:, 0, 0].set(True).at[1, 0, 1].set(True)
    assert cost.speedup(model, (4,)).total == cost.LayerCost("total", 48, 4, alive)


def test_layers_that_cannot_be_counted_are_refused_by_name():
    with pytest.raises(ModelError, match=r"cannot count the multiply-adds of 'inner' in Wrapped: .* cond"):
        cost.speedup(Wrapped(in_a_branch), (3,))


@pytest.mark.parametrize(
    "call", [lambda layer, x: x @ layer.kernel[...], lambda layer, x: layer(x) @ layer.kernel[...]]
)
def test_kernels_used_without_their_masks_are_refused_by_name(call):
    with pytest.raises(ModelError, match=r"'inner' in Wrapped: its kernel is used without its mask"):
        cost.speedup(Wrapped(call), (3,))


class Gated(nnx.Module):
    """The product of two branches."""

    def __init__(self, use_bias):
        self.gate, self.inner = linear(3, 3, use_bias=use_bias), linear(3, 3)
        self.gate.mask[...] = jnp.zeros((3, 3), bool)

    def __call__(self, x):
        return jnp.tanh(self.gate(x)) * jnp.tanh(self.inner(x))


@pytest.mark.parametrize(("use_bias", "alive"), [(True, 9), (False, 0)])
def test_a_gate_without_weights_stays_at_its_bias(use_bias, alive):
    assert cost.speedup(Gated(use_bias), (3,)).total.alive == alive


def test_normalized_weights_count_as_their_layer_does():
    inner = nttzoo.sparsify(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))
    assert cost.speedup(nnx.WeightNorm(inner, rngs=nnx.Rngs(1)), (3,)).total.dense == 6


def test_nothing_left_is_an_infinite_speedup_and_none_in_json():
    model = linear(3, 2)
    model.mask[...] = jnp.zeros((3, 2), bool)
    report = cost.speedup(model, (3,))
    assert report.theoretical == report.without_dead == math.inf
    assert report.to_dict()["theoretical"] is None
    assert str(report).splitlines()[-1].split() == ["total", "6", "0", "0", "-", "-"]


def test_the_table_and_the_dictionary_say_the_same():
    model = nttzoo.sparsify(nnx.Sequential(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 2, rngs=nnx.Rngs(0))))
    model.layers[1].mask[...] = model.layers[1].mask[...].at[1:].set(False)
    report = nttzoo.speedup(model, (4,))
    assert report.to_dict() == {
        "layers": [
            {"name": "layers.0", "dense": 16, "sparse": 16, "alive": 4},
            {"name": "layers.1", "dense": 8, "sparse": 2, "alive": 2},
        ],
        "total": {"name": "total", "dense": 24, "sparse": 18, "alive": 6},
        "theoretical": 24 / 18,
        "without_dead": 4.0,
    }
    assert str(report).splitlines()[-1].split() == ["total", "24", "18", "6", "1.3x", "4.0x"]
