"""Whatever a forward pass does, its kernel is that of the model itself, or refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from oracle import DOUBLE, close, kernel_alone, pruned_at_random

from nttzoo import nn
from nttzoo.errors import ModelError, ShapeError
from nttzoo.ntk import empirical_ntk, factors, selfcheck

pytestmark = [
    pytest.mark.usefixtures("x64"),
    pytest.mark.filterwarnings("ignore:no fast tangent rule", "ignore:sparsify left"),
]


def linear(inputs=4, outputs=4, seed=0, **options):
    return nnx.Linear(inputs, outputs, rngs=nnx.Rngs(seed), bias_init=nnx.initializers.normal(1.0), **options, **DOUBLE)


class Model(nnx.Module):
    """Two layers and a head; what the cases change is how they are called."""

    def __init__(self):
        self.a, self.b, self.head = linear(seed=1), linear(seed=2), linear(4, 2, seed=3)

    def __call__(self, x):
        return self.head(jnp.tanh(self.body(x)))

    def body(self, x):
        return self.b(jnp.tanh(self.a(x)))


def model_with(**methods):
    """A model whose forward pass or construction is another one."""
    change = methods.pop("change", None)
    model = type("Model", (Model,), methods)()
    if change:
        change(model)
    return model


# Examples in another order, put back.


def sorted_by_norm(self, x):
    order = jnp.argsort(jnp.square(x).sum(1))
    return Model.body(self, x[order])[jnp.argsort(order)]


def halves_swapped(self, x):
    half = len(x) // 2
    y = Model.body(self, jnp.concatenate([x[half:], x[:half]]))
    return jnp.concatenate([y[len(x) - half :], y[: len(x) - half]])


# Code that looks at its layers.


def by_type(self, x):
    scale = {nnx.Linear: 1.0, nn.Linear: 2.0}
    return Model.body(self, x) * scale[type(self.a)] if self.a.__class__ in scale else x


def unbound(self, x):
    return self.b(jnp.tanh(type(self.a).__call__(self.a, inputs=x)))


# Callables of a layer that change its weights.


def promoting(model):
    model.a.promote_dtype = lambda arrays, dtype=None: (2 * arrays[0], arrays[1] ** 3, jnp.sin(arrays[2]))


def multiplying(model):
    model.a.dot_general = lambda x, kernel, *args, **options: 3 * jax.lax.dot_general(x, kernel, *args, **options)
    model.b.dot_general = lambda x, kernel, *args, **options: jax.lax.dot_general(x, jnp.tanh(kernel), *args, **options)


def precise(model):
    model.a.precision, model.b.preferred_element_type = "highest", jnp.float64


class Twice(nnx.Linear):
    def __call__(self, x):
        return super().__call__(2 * x) + x


def subclassed(model):
    model.a = Twice(4, 4, rngs=nnx.Rngs(0), **DOUBLE)


# Weights that are not what they seem.


def weight_norm(model):
    model.a = nnx.WeightNorm(model.a, rngs=nnx.Rngs(1), **DOUBLE)


def spectral_norm(model):
    model.a = nnx.SpectralNorm(model.a, rngs=nnx.Rngs(1), **DOUBLE)
    model.eval()


def tied(model):
    model.b.kernel = model.a.kernel


def used_raw(self, x):
    return jnp.tanh(self.a(x)) @ self.a.kernel[...].T


def hypernetwork(self, x):
    return x @ self.b(jnp.tanh(self.a(jnp.eye(4))))


def kernel_from_elsewhere(self, x):
    self.a.kernel[...] = self.b(jnp.eye(4))
    return self.a(x)


def bias_used_twice(self, x):
    return Model.body(self, x) * self.a.bias[...][None]


def called_often(self, x):
    x = jnp.tanh(self.a(x))
    x = x + self.a(2 * x)
    return x + self.b(jnp.tanh(self.a(x).reshape(-1, 2, 2).swapaxes(1, 2).reshape(-1, 4)))


# Transforms.


def gradient_inside(self, x):
    return jax.vmap(jax.grad(lambda v: jnp.tanh(Model.body(self, v[None])).sum()))(x)


def jvp_inside(self, x):
    y, tangent = jax.jvp(lambda v: jnp.tanh(self.a(v)), (x,), (jnp.ones_like(x),))
    return self.b(y * tangent)


def vjp_inside(self, x):
    y, pull = jax.vjp(lambda v: jnp.tanh(self.a(v)), x)
    return self.b(pull(y)[0])


def hessian_inside(self, x):
    return jax.vmap(jax.hessian(lambda v: jnp.tanh(self.a(v[None])).sum()))(x).sum(-1)


def gradient_by_weights(self, x):
    return x @ nnx.grad(lambda layer: jnp.sin(layer(jnp.eye(4))).sum())(self.a)["kernel"][...]


def jit_and_remat(self, x):
    return nnx.remat(lambda layer, x: jnp.tanh(layer(x)))(self.a, nnx.jit(lambda layer, x: layer(x))(self.b, x))


def in_a_branch(self, x):
    return nnx.cond(jnp.ones(()) > 0, lambda m, x: jnp.sin(m.a(x)), lambda m, x: m.b(x), self, x)


def repeated(self, x):
    return jax.lax.fori_loop(0, 3, lambda i, x: jnp.tanh(self.a(x)), x)


def other_derivative(self, x):
    @jax.custom_vjp
    def product(x, kernel):
        return x @ kernel

    product.defvjp(lambda x, k: (x @ k, (x, k)), lambda seen, g: (g @ seen[1].T, 2 * seen[0].T @ g))
    return product(x, self.a.kernel[...])


def other_jvp(self, x):
    @jax.custom_jvp
    def product(x, kernel):
        return x @ kernel

    product.defjvp(lambda seen, t: (seen[0] @ seen[1], 3 * seen[0] @ t[1] + t[0] @ seen[1]))
    return product(x, self.a.kernel[...])


def batch_moved(self, x):
    apart = jnp.moveaxis(jnp.stack([x, jnp.sin(x)], 1), 0, 2)  # [2, 4, n]
    return self.a(jnp.moveaxis(apart, 2, 0).swapaxes(1, 2).swapaxes(1, 2)).mean(1) + self.b(apart[0].T)


BODIES = [
    *(sorted_by_norm, halves_swapped, by_type, unbound, used_raw, hypernetwork, bias_used_twice, called_often),
    *(gradient_inside, jvp_inside, vjp_inside, hessian_inside, jit_and_remat, in_a_branch, repeated),
    *(other_derivative, other_jvp, batch_moved),
]
CHANGES = [promoting, multiplying, precise, subclassed, tied]
X = np.random.default_rng(0).normal(size=(3, 4))


def check(model, x, tangents):
    close(empirical_ntk(model, x, tangents=tangents), kernel_alone(model, x, tangents))


@pytest.mark.parametrize("tangents", ["all", "active"])
@pytest.mark.parametrize("body", BODIES)
def test_forward_passes_of_every_kind(body, tangents):
    check(pruned_at_random(model_with(body=body)), jnp.asarray(X), tangents)


@pytest.mark.parametrize("tangents", ["all", "active"])
@pytest.mark.parametrize("change", CHANGES)
def test_layers_of_every_kind(change, tangents):
    check(pruned_at_random(model_with(change=change)), jnp.asarray(X), tangents)


@pytest.mark.parametrize(
    "make",
    [
        lambda: model_with(change=weight_norm),
        lambda: model_with(change=spectral_norm),
        lambda: model_with(body=kernel_from_elsewhere),
        lambda: model_with(body=gradient_by_weights),
    ],
    ids=["weight norm", "spectral norm", "kernel from elsewhere", "gradient by weights"],
)
def test_masks_on_computed_kernels_have_active_tangents_only(make):
    model = pruned_at_random(make())
    check(model, jnp.asarray(X), "active")
    with pytest.raises(ModelError, match="Use tangents='active'"):
        empirical_ntk(model, jnp.asarray(X), tangents="all")


class Shaped(nnx.Module):
    """One layer of another kind, and a mean over all axes but the last."""

    def __init__(self, layer):
        self.layer = layer

    def __call__(self, x):
        y = jnp.tanh(self.layer(x))
        return jnp.sin(y).mean(tuple(range(1, y.ndim - 1)))


def conv(inputs, outputs, window, **options):
    return nnx.Conv(inputs, outputs, window, rngs=nnx.Rngs(0), **options, **DOUBLE)


def general(inputs, outputs, **options):
    return nnx.LinearGeneral(inputs, outputs, rngs=nnx.Rngs(0), **options, **DOUBLE)


def lora():
    layer = nnx.LoRA(4, 2, 3, base_module=linear(4, 3), rngs=nnx.Rngs(1))
    layer.lora_a = nnx.LoRAParam(layer.lora_a[...].astype(jnp.float64))
    layer.lora_b = nnx.LoRAParam(jnp.ones((2, 3)))
    return layer


LAYERS = {
    "axes not in order": (lambda: general((3, 4), 5, axis=(-1, -2)), (3, 4)),
    "axes in the middle": (lambda: general(3, (2, 5), axis=1), (3, 4)),
    "padding in a list": (lambda: conv(2, 3, (3,), padding=[(1, 2)]), (6, 2)),
    "padding by a number": (lambda: conv(2, 3, (3, 2), padding=[1, (0, 2)], strides=(2, 1)), (6, 5, 2)),
    "reflected": (lambda: conv(2, 4, (2, 3), padding="REFLECT", kernel_dilation=2, feature_group_count=2), (6, 5, 2)),
    "causal": (lambda: conv(2, 3, (3,), padding="CAUSAL"), (5, 2)),
    "stretched": (lambda: conv(2, 3, (2, 2), input_dilation=2, padding=((0, 1), (1, 0))), (3, 4, 2)),
    "transposed": (lambda: nnx.ConvTranspose(2, 3, (2, 3), strides=2, rngs=nnx.Rngs(0), **DOUBLE), (3, 4, 2)),
    "several batch axes": (lambda: conv(2, 3, (2,)), (3, 4, 2)),
    "einsum": (lambda: nnx.Einsum("nta,hab->nthb", (2, 4, 3), (2, 3), rngs=nnx.Rngs(0), **DOUBLE), (3, 4)),
    "low rank": (lora, (4,)),
    "attention": (lambda: nnx.MultiHeadAttention(2, 4, 6, decode=False, rngs=nnx.Rngs(0), **DOUBLE), (3, 4)),
    "recurrent": (lambda: nnx.RNN(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0), **DOUBLE)), (5, 3)),
    "backwards": (lambda: nnx.RNN(nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0), **DOUBLE), reverse=True), (5, 3)),
}  # fmt: skip


@pytest.mark.parametrize("tangents", ["all", "active"])
@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer(name, tangents):
    make, shape = LAYERS[name]
    x = jax.random.normal(jax.random.key(1), (2, *shape), jnp.float64)
    model = Shaped(make())
    check(pruned_at_random(model) if name not in ("einsum", "transposed") else model, x, tangents)


class Stacked(nnx.Module):
    """Three layers whose weights are slices of one array."""

    def __init__(self, call):
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(key):
            return nnx.Linear(4, 4, rngs=nnx.Rngs(key), **DOUBLE)

        self.layers, self.call = make(jax.random.split(jax.random.key(0), 3)), nnx.static(call)

    def __call__(self, x):
        return self.call(self.layers, x)


def in_a_row():
    return nnx.scan(lambda layer, x: jnp.tanh(layer(x)), in_axes=(0, nnx.Carry), out_axes=nnx.Carry)


def side_by_side():
    every = nnx.vmap(lambda layer, x: layer(x), in_axes=(0, None))
    return lambda layers, x: jnp.tanh(every(layers, x)).sum(0)


@pytest.mark.parametrize("tangents", ["all", "active"])
@pytest.mark.parametrize("make", [in_a_row, side_by_side])
def test_weights_in_slices(make, tangents):
    ours, theirs = (pruned_at_random(Stacked(make())) for _ in range(2))  # two, as JAX keeps what it traced
    close(empirical_ntk(ours, jnp.asarray(X), tangents=tangents), kernel_alone(theirs, jnp.asarray(X), tangents))


@pytest.mark.parametrize("recurrent", [False, True])
def test_recurrent_and_ordinary_layers_need_no_exact_jacobian(recurrent):
    model = Shaped(LAYERS["recurrent"][0]()) if recurrent else Model()
    x = jnp.ones((2, 5, 3)) if recurrent else jnp.asarray(X)
    _, found = factors.shares(model, x, None, active=False)
    assert [path for path, share in found.items() if isinstance(share, factors.Rows)] == []


def test_a_model_that_squeezes_its_batch_away():
    squeezing = model_with(__call__=lambda self, x: Model.__call__(self, x.squeeze()))
    x = jnp.asarray(X)
    close(empirical_ntk(squeezing, x.reshape(3, 1, 1, 4)), kernel_alone(Model(), x, "active"))


@pytest.mark.parametrize(
    "call",
    [
        lambda self, x: Model.__call__(self, x) * x.mean(),
        lambda self, x: Model.__call__(self, x)[::-1],
        lambda self, x: Model.__call__(self, x - x.mean(0, keepdims=True)),
        lambda self, x: Model.__call__(self, nnx.Dropout(0.5, rngs=nnx.Rngs(0))(x)),
        lambda self, x: jnp.roll(Model.__call__(self, x), 2, 0),  # nothing happens to a batch of two
        lambda self, x: Model.__call__(self, x - x.mean(0, keepdims=True) if len(x) > 3 else x),
    ],
    ids=["scaled by all", "out of order", "centered", "by chance", "moved by two", "centered if many"],
)
def test_examples_that_depend_on_each_other_are_refused(call):
    with pytest.raises(ModelError, match="another output when it comes in a batch"):
        empirical_ntk(model_with(__call__=call), jnp.asarray([*X, X[0] + 1]))


def test_a_loop_without_derivatives_is_refused():
    body = lambda self, x: jax.lax.while_loop(lambda x: x.sum() < 9, lambda x: self.a(x) ** 2 + 1, x)  # noqa: E731
    with pytest.raises(ModelError, match=r"cannot be differentiated.*Use lax\.scan"):
        empirical_ntk(model_with(body=body), jnp.asarray(X))


def test_complex_parameters_are_refused():
    def change(model):
        model.a.kernel = nnx.Param(model.a.kernel[...] * 1j)

    model = model_with(change=change, body=lambda self, x: self.b(jnp.abs(x @ self.a.kernel[...])))
    with pytest.raises(ModelError, match=r"a\.kernel is complex"):
        empirical_ntk(model, jnp.asarray(X))


def test_a_model_that_takes_no_such_examples_is_refused():
    with pytest.raises(ShapeError, match=r"does not take a batch of two examples of shape \[5\]"):
        empirical_ntk(Model(), jnp.ones((2, 5)))


# The check of the rules themselves.


@pytest.fixture
def wrong_rules(monkeypatch):
    """Rules that forget a layer's bias."""

    def wrong(*args, **options):
        y, found = factors.shares(*args, **options)
        return y, {path: share for path, share in found.items() if "a" not in path}

    monkeypatch.setattr(selfcheck, "shares", wrong)
    selfcheck.forget()
    yield
    selfcheck.forget()


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("tangents", ["all", "active"])
def test_wrong_rules_are_noticed_and_replaced(wrong_rules, tangents, transform):
    model = pruned_at_random(Model())
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    run = transform(lambda params, x: empirical_ntk(nnx.merge(graph, params, rest, copy=True), x, tangents=tangents))
    with pytest.warns(UserWarning, match="exact Jacobian is used for the kernel of Model: the fast rules differ"):
        kernel = run(params, jnp.asarray(X))
    close(kernel, kernel_alone(model, jnp.asarray(X), tangents))


def test_rules_that_fail_are_replaced(monkeypatch):
    def broken(*_, **__):
        raise NotImplementedError("no rule for this")

    monkeypatch.setattr(selfcheck, "shares", broken)
    selfcheck.forget()
    with pytest.warns(UserWarning, match=r"fast rules fail on it \(NotImplementedError: no rule for this\)"):
        kernel = empirical_ntk(Model(), jnp.asarray(X))
    selfcheck.forget()
    close(kernel, kernel_alone(Model(), jnp.asarray(X), "active"))


def test_a_structure_is_checked_once(monkeypatch):
    checks = []
    agrees = selfcheck._agrees
    monkeypatch.setattr(selfcheck, "_agrees", lambda *args: checks.append(args) or agrees(*args))
    selfcheck.forget()
    for seed in range(2):
        model = Model()
        model.a.kernel[...] = jax.random.normal(jax.random.key(seed), (4, 4))
        empirical_ntk(model, jnp.asarray(X))
    assert len(checks) == 1
    empirical_ntk(model, jnp.asarray(X), tangents="active")
    assert len(checks) == 2
