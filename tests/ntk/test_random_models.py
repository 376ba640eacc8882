"""Random models, masked and not, against jacrev one example at a time. NTTZOO_DRAWS=200 tries more of them."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.errors import TraceContextError
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from oracle import DOUBLE, close, kernel_alone, pruned_at_random

from nttzoo.ntk import empirical_ntk

pytestmark = [pytest.mark.usefixtures("x64"), pytest.mark.filterwarnings("ignore:no fast tangent rule")]

TIME, WIDTH = 3, 4
# Every layer maps [n, TIME, WIDTH] to the same shape.
LAYERS = {
    "linear": lambda rngs: nnx.Linear(WIDTH, WIDTH, rngs=rngs, **DOUBLE),
    "no bias": lambda rngs: nnx.Linear(WIDTH, WIDTH, use_bias=False, rngs=rngs, **DOUBLE),
    "axes": lambda rngs: nnx.LinearGeneral((TIME, WIDTH), (TIME, WIDTH), axis=(-1, -2), rngs=rngs, **DOUBLE),
    "einsum": lambda rngs: nnx.Einsum("nta,tab->ntb", (TIME, WIDTH, WIDTH), (TIME, WIDTH), rngs=rngs, **DOUBLE),
    "conv": lambda rngs: nnx.Conv(WIDTH, WIDTH, (3,), padding=[(0, 2)], rngs=rngs, **DOUBLE),
    "groups": lambda rngs: nnx.Conv(WIDTH, WIDTH, (2,), feature_group_count=2, rngs=rngs, **DOUBLE),
    "around": lambda rngs: nnx.Conv(WIDTH, WIDTH, (3,), padding="CIRCULAR", kernel_dilation=2, rngs=rngs, **DOUBLE),
    "layer norm": lambda rngs: nnx.LayerNorm(WIDTH, rngs=rngs, **DOUBLE),
    "group norm": lambda rngs: nnx.GroupNorm(WIDTH, 2, rngs=rngs, **DOUBLE),
    "recurrent": lambda rngs: nnx.RNN(nnx.GRUCell(WIDTH, WIDTH, rngs=rngs, **DOUBLE)),
    "attention": lambda rngs: nnx.MultiHeadAttention(2, WIDTH, decode=False, rngs=rngs, **DOUBLE),
}


def sorted_by_norm(call, x):
    order = jnp.argsort(jnp.square(x).sum((1, 2)))
    return call(x[order])[jnp.argsort(order)]


# Ways to call a block: (how to call it, the block, examples) -> results.
CALLS = {
    "residual": lambda block, x: x + block(x),
    "twice": lambda block, x: block(jnp.sin(block(x))),
    "transposed": lambda block, x: block(jnp.roll(x, 1, 2)[:, ::-1]) * x.mean(1, keepdims=True),
    "reversed": lambda block, x: block(x[::-1])[::-1],
    "rolled": lambda block, x: jnp.roll(block(jnp.roll(x, 1, 0)), -1, 0),
    "sorted": sorted_by_norm,
    "jit": lambda block, x: nnx.jit(lambda block, x: block(x))(block, x),
    "remat": lambda block, x: nnx.remat(lambda block, x: block(x))(block, x),
    "loop": lambda block, x: nnx.scan(
        lambda x, block: block(jnp.tanh(x)), in_axes=(nnx.Carry, None), out_axes=nnx.Carry, length=2
    )(x, block),
    "vmap": lambda block, x: jax.vmap(lambda example: block(example[None])[0])(x),
    "slope": lambda block, x: jax.vmap(jax.grad(lambda example: jnp.tanh(block(example[None])).sum()))(x),
}


class Block(nnx.Module):
    """A layer, or a way to call another block."""

    def __init__(self, plan, rngs):
        if isinstance(plan, str):
            self.inner, self.how = LAYERS[plan](rngs), nnx.static(lambda layer, x: jnp.tanh(layer(x)))
        else:
            how, inner = plan
            self.inner, self.how = Block(inner, rngs), nnx.static(CALLS[how])

    def __call__(self, x):
        return self.how(self.inner, x)


class Drawn(nnx.Module):
    """Blocks one after another; the first kernel of a model may also be that of another layer."""

    def __init__(self, plans, seed):
        rngs = nnx.Rngs(seed)
        self.blocks = nnx.List([Block(plan, rngs) for plan in plans])
        self.head = nnx.Linear(WIDTH, 2, rngs=rngs, **DOUBLE)

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


plans = st.recursive(st.sampled_from(sorted(LAYERS)), lambda inner: st.tuples(st.sampled_from(sorted(CALLS)), inner))


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("NTTZOO_DRAWS", "4")))
@given(
    st.lists(plans, min_size=1, max_size=3),
    st.integers(0, 99),
    st.sampled_from(["dense", "masked"]),
    st.sampled_from(["all", "active"]),
)
def test_kernels_of_random_models(drawn, seed, kind, tangents):
    model = Drawn(drawn, seed)
    if kind == "masked":
        model = pruned_at_random(model, seed)
    x = jnp.asarray(np.random.default_rng(seed).normal(size=(3, TIME, WIDTH)))
    try:
        jax.eval_shape(lambda x: nnx.clone(model)(x), x)
    except TraceContextError:  # nnx.RNN cannot be called inside jax.vmap or jax.grad
        reject()
    close(empirical_ntk(model, x, tangents=tangents), kernel_alone(model, x, tangents))
