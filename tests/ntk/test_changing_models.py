"""What a model computes may change without its structure: what was compiled or checked for it before is not used."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from oracle import DOUBLE, close, kernel_alone

import nttzoo
from nttzoo.dataflow import fingerprint
from nttzoo.ntk import empirical_ntk, kernel_distance

pytestmark = pytest.mark.usefixtures("x64")
X = np.random.default_rng(0).normal(size=(4, 5, 2))
SCALE = {"now": 1.0}


class Model(nnx.Module):
    """What it computes depends on things that NNX knows nothing of."""

    def __init__(self, held):
        self.conv = nnx.Conv(2, 3, (3,), padding=[(0, 2)], rngs=nnx.Rngs(0), **DOUBLE)
        self.head = nnx.Linear(3, 2, rngs=nnx.Rngs(1), **DOUBLE)
        self.held = nnx.static(held)

    def scale(self):
        return self.held["now"]

    def __call__(self, x):
        return self.head(jnp.tanh(self.scale() * self.conv(x))[:, 0])


class Config(Model):
    def scale(self):
        return self.held.now


class Global(Model):
    def scale(self):
        return SCALE["now"]


class Constant(Model):
    """The program is the same, but for an array in it."""

    def scale(self):
        return jnp.array([1.0, 2.0, SCALE["now"]])[None, None]


class Derivative(Model):
    """Another derivative of the same function."""

    def __call__(self, x):
        @jax.custom_vjp
        def act(x):
            return jnp.tanh(x)

        act.defvjp(lambda x: (jnp.tanh(x), None), lambda _, g: (SCALE["now"] * g,))
        return self.head(act(self.conv(x))[:, 0])


def held(model):
    model.held["now"] = 3.0


def configured(model):
    model.held.now = 3.0


def scaled(model):
    SCALE["now"] = 3.0


def padded(model):
    model.conv.padding[0] = (2, 0)


CHANGES = {
    "dictionary": (lambda: Model({"now": 1.0}), held),
    "object": (lambda: Config(SimpleNamespace(now=1.0)), configured),
    "global": (lambda: Global(None), scaled),
    "array": (lambda: Constant(None), scaled),
    "derivative": (lambda: Derivative(None), scaled),
    "padding": (lambda: Model({"now": 1.0}), padded),
}


@pytest.fixture(autouse=True)
def unscaled(monkeypatch):
    monkeypatch.setitem(SCALE, "now", 1.0)


@pytest.mark.parametrize("memory", [None, 1], ids=["whole", "in blocks"])
@pytest.mark.parametrize("kind", CHANGES)
def test_a_kernel_is_that_of_the_model_as_it_is_now(kind, memory):
    make, change = CHANGES[kind]
    model, x = make(), jnp.asarray(X)
    before = empirical_ntk(model, x, memory=memory)
    change(model)
    kernel = empirical_ntk(model, x, memory=memory)
    assert float(jnp.abs(kernel - before).max()) > 1e-3
    close(kernel, kernel_alone(model, x, "active"))
    distance = kernel_distance(model, before[:2, 2:], x[:2], x[2:])
    np.testing.assert_allclose(distance, jnp.mean(jnp.square(kernel - before)[:2, 2:]), rtol=1e-9)


@pytest.mark.parametrize("method", ["logit_snip", "grasp", "synflow", "ntk_sap"])
def test_pruning_sees_the_model_as_it_is_now(method):
    batch = jnp.asarray(X), jnp.arange(4) % 2

    def masks(model):
        how = {"density": 0.5, "batch": batch[0] if method == "logit_snip" else batch, "input_shape": (5, 2), "rngs": 0}
        pruned = nttzoo.prune(nttzoo.sparsify(model), method, **how)
        return np.concatenate([np.ravel(layer.mask[...]) for layer in (pruned.conv, pruned.head)])

    model = Model({"now": 1.0})
    before = masks(model)
    model.conv.padding[0] = (2, 0)
    after = masks(model)
    jax.clear_caches()
    np.testing.assert_array_equal(after, masks(model))
    assert (before != after).any()


def test_equal_programs_have_equal_fingerprints_although_they_are_traced_anew():
    def traced(x):
        act = jax.custom_jvp(lambda x: jnp.tanh(x))
        act.defjvps(lambda t, y, x: t)
        return jax.jit(lambda x: act(x) + jnp.arange(3.0))(x)

    one, two = (fingerprint(jax.make_jaxpr(lambda x: traced(x))(jnp.ones(3))) for _ in range(2))
    assert one == two
    assert one != fingerprint(jax.make_jaxpr(lambda x: traced(x) * 2)(jnp.ones(3)))
