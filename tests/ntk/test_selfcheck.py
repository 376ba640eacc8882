"""The check of the kernel's rules."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from odd_models import Model, X
from oracle import close, kernel_alone, pruned_at_random

from nttzoo.ntk import empirical_ntk, factors, selfcheck

pytestmark = [
    pytest.mark.usefixtures("x64"),
    pytest.mark.filterwarnings("ignore:no fast tangent rule", "ignore:sparsify left"),
]


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
