"""Models whose layers do something else than they seem to: every parameter counts, once, as it acts."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from networks import DOUBLE
from test_ntk import by_jacrev, close

from nttzoo.errors import ModelError, ShapeError
from nttzoo.ntk import empirical_ntk, kernel_distance
from nttzoo.ntk.blocks import kernel_blocks
from nttzoo.ntk.factors import dense_rows

pytestmark = pytest.mark.usefixtures("x64")


class Pair(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.a = nnx.Linear(4, 4, rngs=rngs, **DOUBLE)
        self.b = nnx.Linear(4, 4, rngs=rngs, **DOUBLE)
        self.last = nnx.Linear(4, 2, rngs=rngs, **DOUBLE)

    def __call__(self, x):
        return self.last(jnp.tanh(self.b(jnp.tanh(self.a(x)))))


class Frozen(nnx.Variable):
    pass


def tied():
    model = Pair()
    model.b.kernel = model.a.kernel
    return model


def frozen_kernel():
    model = Pair()
    model.a.kernel = Frozen(model.a.kernel[...])
    return model


def frozen_bias():
    model = Pair()
    model.b.bias = Frozen(jnp.ones(4))
    return model


def weight_norm():
    model = Pair()
    model.a = nnx.WeightNorm(model.a, rngs=nnx.Rngs(1), **DOUBLE)
    return model


def spectral_norm():
    model = Pair()
    model.a = nnx.SpectralNorm(model.a, rngs=nnx.Rngs(1), **DOUBLE)
    model.eval()
    return model


class Factored(Pair):
    """The first kernel is made of two others in the forward pass."""

    def __init__(self):
        super().__init__()
        self.u, self.v = (nnx.Param(jax.random.normal(jax.random.key(i), (4, 4))) for i in range(2))

    def __call__(self, x):
        self.a.kernel[...] = self.u[...] @ self.v[...]
        return super().__call__(x)


class Alternating(Factored):
    """One layer is called with one kernel, then with another."""

    def __call__(self, x):
        for kernel in (self.u, self.v):
            self.a.kernel[...] = kernel[...]
            x = jnp.tanh(self.a(x))
        return self.last(x)


class MaskedNorm(Pair):
    def __init__(self):
        super().__init__()
        self.norm = nnx.LayerNorm(4, rngs=nnx.Rngs(0), **DOUBLE)
        self.norm.scale[...] = jnp.arange(4.0)

    def __call__(self, x):
        return super().__call__(self.norm(self.a(x), mask=jnp.array([True, True, True, False])))


@pytest.mark.parametrize(
    "make", [tied, frozen_kernel, frozen_bias, weight_norm, spectral_norm, Factored, Alternating, MaskedNorm]
)
@pytest.mark.filterwarnings("ignore:no fast tangent rule")
def test_layers_that_use_other_things_than_their_own_parameters(make):
    model, x = make(), jax.random.normal(jax.random.key(5), (3, 4))
    close(empirical_ntk(model, x), by_jacrev(model, x, x, "active"))


def test_an_ordinary_model_keeps_its_fast_rules():
    empirical_ntk(Pair(), jnp.ones((2, 4)))  # a warning would be an error


def test_norms_may_name_their_argument():
    class Named(Pair):
        def __init__(self):
            super().__init__()
            self.norm = nnx.RMSNorm(4, rngs=nnx.Rngs(0), **DOUBLE)

        def __call__(self, x):
            return super().__call__(self.norm(x=x))

    model, x = Named(), jax.random.normal(jax.random.key(5), (3, 4))
    close(empirical_ntk(model, x), by_jacrev(model, x, x, "active"))


@pytest.mark.filterwarnings("ignore:no fast tangent rule")
@pytest.mark.parametrize("kept", [1.0, 0.5])
@pytest.mark.parametrize("tangents", ["all", "active"])
def test_the_mask_that_a_plain_convolution_may_have(kept, tangents):
    mask = kept * (jnp.arange(9.0).reshape(3, 1, 3) % 2)

    class Masked(nnx.Module):
        def __init__(self):
            self.conv = nnx.Conv(1, 3, (3,), mask=mask, rngs=nnx.Rngs(0), **DOUBLE)

        def __call__(self, x):
            return jnp.tanh(self.conv(x)).mean(1)

    x = jax.random.normal(jax.random.key(5), (3, 5, 1))
    kernel = empirical_ntk(Masked(), x, tangents=tangents)
    active = tangents == "active"
    close(kernel, kernel_blocks(Masked(), x, x, None, trace=False, active=active, find_shares=dense_rows))


def test_half_precision_inside_a_model_leaves_the_kernel_in_the_precision_of_its_parameters():
    class Half(nnx.Module):
        def __init__(self, dtype):
            options = {"dtype": dtype, "param_dtype": jnp.float32, "rngs": nnx.Rngs(0)}
            self.first, self.last = nnx.Linear(4, 2048, **options), nnx.Linear(2048, 2, **options)

        def __call__(self, x):
            return self.last(jnp.tanh(self.first(x)))

    x = 30 * jax.random.normal(jax.random.key(5), (3, 4), jnp.float32)
    kernel = empirical_ntk(Half(jnp.float16), x)  # its largest entries do not fit 16 bits
    assert kernel.dtype == jnp.float32
    np.testing.assert_allclose(kernel, empirical_ntk(Half(jnp.float32), x), rtol=0.02, atol=0.02 * kernel.max())


def test_a_teacher_with_other_outputs_is_refused_also_when_they_are_sampled():
    student, teacher = (nnx.Linear(4, count, rngs=nnx.Rngs(0), **DOUBLE) for count in (10, 3))
    x = jnp.ones((2, 4))
    with pytest.raises(ShapeError, match="teacher has 3 outputs, the student 10"):
        kernel_distance(student, teacher, x, x, outputs=jnp.array([7, 9]))


def test_attention_in_training_mode_is_refused():
    class Attending(nnx.Module):
        def __init__(self):
            self.attention = nnx.MultiHeadAttention(2, 4, dropout_rate=0.5, decode=False, rngs=nnx.Rngs(0), **DOUBLE)

        def __call__(self, x):
            return self.attention(x).mean(1)

    model, x = Attending(), jax.random.normal(jax.random.key(5), (2, 3, 4))
    model.train()
    with pytest.raises(ModelError, match=r"'attention' \(MultiHeadAttention\) is in training mode"):
        empirical_ntk(model, x)
    model.eval()
    close(empirical_ntk(model, x), by_jacrev(model, x, x, "active"))


def test_models_without_tangents_are_refused():
    class Nothing(nnx.Module):
        def __init__(self, outputs):
            self.outputs = outputs

        def __call__(self, x):
            return x[:, : self.outputs]

    for outputs, says in ((2, "has no parameters"), (0, r"outputs \[n, o\]")):
        with pytest.raises(ModelError, match=says):
            empirical_ntk(Nothing(outputs), jnp.ones((2, 4)))


# Compiled as users do: the suite's own options may hide the fault.
SEVEN_AXES = """
import jax, jax.numpy as jnp, numpy as np
from flax import nnx
from nttzoo.ntk import kernel_distance
from nttzoo.nn import merge_params, split_params

class Net(nnx.Module):
    def __init__(self, **dtypes):
        self.conv1 = nnx.Conv(1, 8, (3, 3), rngs=nnx.Rngs(0), **dtypes)
        self.conv2 = nnx.Conv(8, 16, (3, 3), strides=2, rngs=nnx.Rngs(1), **dtypes)
        self.norm = nnx.GroupNorm(16, 4, rngs=nnx.Rngs(2), **dtypes)
        self.head = nnx.Linear(16, 10, rngs=nnx.Rngs(3), **dtypes)

    def __call__(self, x):
        return self.head(nnx.relu(self.norm(self.conv2(nnx.relu(self.conv1(x))))).mean((1, 2)))

def gradient(dtype):
    graph, params, rest = split_params(Net(dtype=dtype))
    x = np.random.default_rng(0).normal(size=(32, 28, 28, 1)).astype(dtype)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), params)

    def loss(params):
        model = merge_params(graph, params, rest)
        return kernel_distance(model, jnp.zeros((16, 16, 2, 2), dtype), x[:16], x[16:], outputs=np.array([2, 7]))

    leaves = jax.tree.leaves(jax.jit(jax.grad(loss))(params))
    return np.concatenate([np.ravel(leaf) for leaf in leaves])

single = gradient(np.float32)
with jax.enable_x64(True):
    double = gradient(np.float64)
print(np.abs(single - double).max() / np.abs(double).max())
"""


@pytest.mark.slow
def test_norms_of_groups_do_not_end_the_process_where_xla_fails_at_seven_axes():
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "JAX_"))}
    done = subprocess.run([sys.executable, "-c", SEVEN_AXES], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-500:]
    assert float(done.stdout) < 1e-3
