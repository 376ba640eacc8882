import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nttzoo import nn
from nttzoo.nn import taps


class Net(nnx.Module):
    def __init__(self):
        self.first = nn.Linear(3, 3, rngs=nnx.Rngs(0))
        self.rest = nnx.List([nn.Linear(3, 2, rngs=nnx.Rngs(1))])

    def __call__(self, x):
        return self.rest[0](jnp.tanh(self.first(jnp.tanh(self.first(x)))))


X = jnp.asarray(np.random.default_rng(0).normal(size=(4, 3)), jnp.float32)


def affine(layer, x):
    return x @ layer.kernel[...] + layer.bias[...][None]


def steps(net, x):
    """Inputs and outputs of the three calls, by hand."""
    one = affine(net.first, x)
    two = affine(net.first, jnp.tanh(one))
    return [(x, one), (jnp.tanh(one), two), (jnp.tanh(two), affine(net.rest[0], jnp.tanh(two)))]


def test_every_call_is_recorded_in_order():
    net = Net()
    outputs, calls = taps.record(net, nn.is_masked, lambda m: m(X))
    np.testing.assert_array_equal(outputs, net(X))
    assert [call.path for call in calls] == [("first",), ("first",), ("rest", 0)]
    for call, (a, b) in zip(calls, steps(net, X), strict=True):
        np.testing.assert_allclose(call.inputs, a, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(call.outputs, b, rtol=1e-5, atol=1e-6)


def test_only_the_wanted_layers_are_recorded():
    _, calls = taps.record(Net(), lambda layer: nn.is_masked(layer) and layer.out_features == 2, lambda m: m(X))
    assert [call.path for call in calls] == [("rest", 0)]


def test_the_model_itself_is_left_alone():
    net = Net()
    taps.record(net, nn.is_masked, lambda m: m(X))
    assert type(net.first) is type(net.rest[0]) is nn.Linear


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_recorded_afterwards(fails):
    net, copies, seen = Net(), [], []

    def run(copy):
        copies.append(copy)
        return 1 / (not fails)

    def hook(i, call):
        seen.append(call)
        return call.outputs

    if fails:
        with pytest.raises(ZeroDivisionError):
            taps.record(net, nn.is_masked, run, hook)
    else:
        taps.record(net, nn.is_masked, run, hook)
    np.testing.assert_array_equal(copies[0](X), net(X))
    assert seen == []


def test_derivatives_by_perturbations_are_the_cotangents_at_the_outputs():
    net = Net()

    def loss(perturbations):
        y, _ = taps.record(net, nn.is_masked, lambda m: m(X), lambda i, call: call.outputs + perturbations[i])
        return jnp.sin(y).sum()

    def by_hand(perturbations):
        one = affine(net.first, X) + perturbations[0]
        two = affine(net.first, jnp.tanh(one)) + perturbations[1]
        return jnp.sin(affine(net.rest[0], jnp.tanh(two)) + perturbations[2]).sum()

    zeros = [jnp.zeros((4, 3)), jnp.zeros((4, 3)), jnp.zeros((4, 2))]
    for got, expected in zip(jax.grad(loss)(zeros), jax.grad(by_hand)(zeros), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_shapes_alone_compute_nothing():
    calls = taps.call_shapes(Net(), nn.is_masked, jax.ShapeDtypeStruct((7, 3), jnp.float32))
    assert [(call.path, call.inputs.shape, call.outputs.shape) for call in calls] == [
        (("first",), (7, 3), (7, 3)),
        (("first",), (7, 3), (7, 3)),
        (("rest", 0), (7, 3), (7, 2)),
    ]
    assert all(isinstance(call.outputs, jax.ShapeDtypeStruct) for call in calls)


def test_recording_works_inside_jit():
    net = Net()

    @jax.jit
    def inputs(x):
        return [call.inputs for call in taps.record(net, nn.is_masked, lambda m: m(x))[1]]

    for got, (expected, _) in zip(inputs(X), steps(net, X), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


class Hidden(Net):
    def __call__(self, x):
        return self.rest[0](nnx.jit(lambda layer, x: layer(x))(self.first, x))


def test_calls_inside_a_transform_of_the_models_own_are_not_recorded():
    _, calls = taps.record(Hidden(), nn.is_masked, lambda m: m(X))
    assert [call.path for call in calls] == [("rest", 0)]
