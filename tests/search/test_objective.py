import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from networks import paper

from nttzoo.nn import masked_layers, merge_params, path_name, split_params
from nttzoo.search import objective
from nttzoo.sparsity import pruning

pytestmark = pytest.mark.usefixtures("x64")
COEFFICIENTS = objective.LossCoefficients(kernel_weight=0.3, weight_decay=0.02)
SHAPES = {"lenet300": (3, 3, 1), "lenet5": (16, 16, 1)}


def forward(weights, x):
    """The paper's networks in plain JAX, by the names of their layers."""
    for name in ("conv1", "conv2"):
        if name in weights:
            kernel, bias = weights[name]
            numbers = ("NHWC", "HWIO", "NHWC")
            x = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=numbers) + bias.reshape(
                1, 1, 1, -1
            )
            x = jax.nn.relu(lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"))
    x = x.reshape(len(x), -1)
    dense = sorted(name for name in weights if name.startswith("linear"))
    for name in dense:
        x = x @ weights[name][0] + weights[name][1].reshape(1, -1)
        x = jax.nn.relu(x) if name != dense[-1] else x
    return x


def dense_jacobian_loss(free, kept, teacher, x, density, tangents):
    """The loss of DESIGN, with kernels from whole Jacobians."""
    masked = {name: (kernel * kept[name], bias) for name, (kernel, bias) in free.items()}

    def kernel(weights, masks):
        point = lambda w: {name: (k * masks[name], b) for name, (k, b) in w.items()}  # noqa: E731
        rows = jax.tree.leaves(jax.jacrev(lambda w: forward(point(w), x))(weights))
        rows = jnp.concatenate([leaf.reshape(len(x), 3, -1) for leaf in rows], 2)
        return jnp.einsum("nrd,msd->nmrs", rows[: len(x) // 2], rows[len(x) // 2 :])

    full = {name: jnp.ones_like(mask, float) for name, mask in kept.items()}
    ours = kernel(masked, full) if tangents == "all" else kernel(free, kept)
    target = jnp.mean((forward(masked, x) - forward(teacher, x)) ** 2)
    distance = jnp.mean((ours - kernel(teacher, full)) ** 2)
    decay = sum(jnp.sum(kernel**2) for kernel, _ in masked.values())
    return target + COEFFICIENTS.kernel_weight * distance + COEFFICIENTS.weight_decay / density * decay


def by_name(model):
    return {path_name(path): (layer.kernel[...], layer.bias[...]) for path, layer in masked_layers(model).items()}


@pytest.mark.parametrize("tangents", ["all", "active"])
@pytest.mark.parametrize("name", ["lenet300", "lenet5"])
def test_loss_and_gradient_equal_those_of_dense_jacobians(name, tangents):
    teacher, student = paper(name, SHAPES[name]), paper(name, SHAPES[name], seed=1)
    teacher.eval(), student.eval()
    pruning.prune(student, "random", density=0.3, rngs=0)
    x = jax.random.normal(jax.random.key(0), (4, *SHAPES[name]), jnp.float64)
    seen = objective.behavior(teacher, x)
    graph, params, rest = split_params(student)

    def ours(params):
        model = merge_params(graph, params, rest)
        return objective.ntt_loss(model, seen, x, density=0.3, coefficients=COEFFICIENTS, tangents=tangents)[0]

    kept = {path_name(p): layer.mask[...].astype(float) for p, layer in masked_layers(student).items()}
    theirs = jax.jit(
        jax.value_and_grad(lambda free: dense_jacobian_loss(free, kept, by_name(teacher), x, 0.3, tangents))
    )
    value, gradient = jax.jit(jax.value_and_grad(ours))(params)
    expected, expected_gradient = theirs(by_name(student))
    np.testing.assert_allclose(value, expected, rtol=1e-10)
    found = nnx.merge(graph, gradient, rest)
    for layer, (kernel, bias) in expected_gradient.items():
        scale = float(jnp.abs(kernel).max())
        np.testing.assert_allclose(getattr(found, layer).kernel[...], kernel, atol=1e-10 * scale)
        np.testing.assert_allclose(getattr(found, layer).bias[...], bias, atol=1e-10 * scale)


def test_the_mean_over_all_pairs_of_outputs_is_the_exact_loss():
    teacher, student = paper("lenet300", (3, 3, 1)), paper("lenet300", (3, 3, 1), seed=1)
    x = jax.random.normal(jax.random.key(0), (4, 3, 3, 1), jnp.float64)

    @jax.jit
    def terms(outputs):
        return objective.ntt_loss(
            student, objective.behavior(teacher, x, outputs), x, outputs, density=1, coefficients=COEFFICIENTS
        )[1]

    exact = objective.ntt_loss(student, objective.behavior(teacher, x), x, density=1, coefficients=COEFFICIENTS)[1]
    pairs = [terms(jnp.array(pair)) for pair in itertools.combinations(range(3), 2)]
    np.testing.assert_allclose(np.mean([pair.kernel for pair in pairs]), exact.kernel, rtol=1e-10)
    assert np.std([pair.kernel for pair in pairs]) > 0, "one pair alone is an estimate"
    np.testing.assert_allclose([pair.target for pair in pairs], exact.target, rtol=1e-12)


def test_a_student_that_is_its_teacher_has_no_loss():
    teacher = paper("lenet300", (3, 3, 1))
    x = jax.random.normal(jax.random.key(0), (4, 3, 3, 1), jnp.float64)
    coefficients = objective.LossCoefficients(kernel_weight=1.0, weight_decay=0.0)
    loss, terms = objective.ntt_loss(teacher, objective.behavior(teacher, x), x, density=1, coefficients=coefficients)
    assert (loss, terms.target, terms.kernel) == (0, 0, 0)
    assert terms.decay > 0


def test_the_divergence_of_the_students_softmax_by_hand():
    student, teacher = jnp.log(jnp.array([[0.5, 0.5], [0.9, 0.1]])), jnp.log(jnp.array([[0.25, 0.75], [0.9, 0.1]]))
    expected = (0.5 * np.log(0.5 / 0.25) + 0.5 * np.log(0.5 / 0.75)) / 2
    np.testing.assert_allclose(objective.reverse_kl(student + 3.0, teacher - 1.0), expected, rtol=1e-12)


def test_a_kernel_that_differs_by_a_factor_is_no_distance_when_normalized():
    model = paper("lenet300", (3, 3, 1))
    x = jax.random.normal(jax.random.key(0), (4, 3, 3, 1), jnp.float64)
    seen = objective.behavior(model, x)
    larger = seen._replace(kernel=3 * seen.kernel)
    plain, normalized = (
        objective.LossCoefficients(kernel_weight=1.0, weight_decay=0.0, normalize_kernels=flag)
        for flag in (False, True)
    )
    of = lambda how: objective.ntt_loss(model, larger, x, density=1, coefficients=how)[1].kernel  # noqa: E731
    np.testing.assert_allclose(of(plain), 4 * np.mean(np.square(seen.kernel)), rtol=1e-10)
    np.testing.assert_allclose(of(normalized), 0, atol=1e-20)
