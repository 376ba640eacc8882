"""Whatever a forward pass does, its kernel is that of the model itself, or refused."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from odd_models import Model, X, check, model_with
from oracle import DOUBLE, close, kernel_alone, pruned_at_random

from nttzoo import nn
from nttzoo.errors import ModelError, ShapeError
from nttzoo.ntk import empirical_ntk

pytestmark = [
    pytest.mark.usefixtures("x64"),
    pytest.mark.filterwarnings("ignore:no fast tangent rule", "ignore:sparsify left"),
]


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
    with pytest.raises(ModelError, match="a different output in a batch"):
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
