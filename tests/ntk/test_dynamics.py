import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
from flax import nnx

from nttzoo import nn
from nttzoo.errors import OptionError, ShapeError
from nttzoo.ntk import empirical_ntk, linearized

pytestmark = pytest.mark.usefixtures("x64")


def linear(rows, mask=None, seed=0):
    model = nn.Linear(rows, 2, use_bias=False, rngs=nnx.Rngs(seed), **networks.DOUBLE)
    if mask is not None:
        model.mask[...] = mask
    return model


def descend(model, x, targets, learning_rate, steps):
    """Outputs along plain full-batch gradient descent on half the squared error."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def outputs(params, x):
        return nnx.merge(graph, params, rest, copy=True)(x)

    def loss(params):
        return 0.5 * jnp.square(outputs(params, x) - targets).sum()

    for _ in range(steps):
        params = jax.tree.map(lambda p, g: p - learning_rate * g, params, jax.grad(loss)(params))
    return lambda x: outputs(params, x)


@pytest.mark.parametrize("steps", [0, 1, 7])
def test_gradient_descent_on_a_linear_model_is_exact_on_train_and_unseen_points(steps):
    keys = jax.random.split(jax.random.key(0), 3)
    train, test = jax.random.normal(keys[0], (4, 5)), jax.random.normal(keys[1], (3, 5))
    targets = jax.random.normal(keys[2], (4, 2))
    model = linear(5, mask=jnp.arange(10).reshape(5, 2) % 3 != 0)
    trained = descend(model, train, targets, 0.05, steps)
    kernel = empirical_ntk(model, train, tangents="active")
    common = {"learning_rate": 0.05}
    on_train = linearized.gradient_descent(kernel, model(train), targets, jnp.array([steps]), **common)
    np.testing.assert_allclose(on_train[0], trained(train), atol=1e-10)
    on_test = linearized.gradient_descent(
        kernel,
        model(train),
        targets,
        jnp.array([steps]),
        test_kernel=empirical_ntk(model, test, train, tangents="active"),
        test_start=model(test),
        **common,
    )
    np.testing.assert_allclose(on_test[0], trained(test), atol=1e-10)


def test_gradient_flow_solves_its_differential_equation():
    model, x, _ = networks.build("lenet300")
    kernel, start = empirical_ntk(model, x), model(x)
    targets = jnp.eye(3)
    h = 1e-6
    path = linearized.gradient_flow(kernel, start, targets, jnp.array([0.0, 0.02 - h, 0.02, 0.02 + h]))
    np.testing.assert_allclose(path[0], start, atol=1e-12)
    slope = (path[3] - path[1]) / (2 * h)
    np.testing.assert_allclose(slope, -jnp.einsum("nmrs,ms->nr", kernel, path[2] - targets), rtol=1e-5, atol=1e-6)


def test_gradient_flow_is_the_limit_of_small_steps_and_ends_at_the_targets():
    model, x, _ = networks.build("lenet300")
    kernel, start, targets = empirical_ntk(model, x), model(x), jnp.eye(3)
    small = linearized.gradient_descent(kernel, start, targets, jnp.array([100_000]), learning_rate=1e-7)
    np.testing.assert_allclose(linearized.gradient_flow(kernel, start, targets, jnp.array([0.01])), small, atol=1e-4)
    late = linearized.gradient_flow(kernel, start, targets, jnp.array([1e6]))
    np.testing.assert_allclose(late[0], targets, atol=1e-6)


def test_wide_network_follows_its_linearization_under_small_steps():
    model, x, _ = networks.build("lenet300")
    kernel, targets = empirical_ntk(model, x, tangents="active"), model(x) + 1e-4
    trained = descend(model, x, targets, 1e-3, 20)
    predicted = linearized.gradient_descent(kernel, model(x), targets, jnp.array([20]), learning_rate=1e-3)
    np.testing.assert_allclose(predicted[0], trained(x), atol=1e-7)


def test_proposition_1_a_linear_student_with_the_teachers_kernel_and_start_moves_like_the_teacher():
    # The images lie in the plane of the first two pixels, so a student that keeps just those weights is NTT-optimal.
    plane = jax.random.normal(jax.random.key(0), (6, 2))
    x = jnp.concatenate([plane, jnp.zeros((6, 3))], 1)
    targets = jax.random.normal(jax.random.key(1), (6, 2))
    teacher = linear(5)
    student = linear(5, mask=jnp.arange(5)[:, None] < jnp.full((1, 2), 2), seed=1)
    student.kernel[...] = teacher.kernel[...]
    random = linear(5, mask=jnp.arange(5)[:, None] < jnp.array([[1, 2]]))
    times = jnp.array([0.1, 1.0, 5.0])

    def path(model):
        return linearized.gradient_flow(empirical_ntk(model, x, tangents="active"), model(x), targets, times)

    np.testing.assert_allclose(path(student), path(teacher), atol=1e-12)
    assert float(jnp.abs(path(random) - path(teacher)).max()) > 1e-2
    for steps in (1, 5):
        one, two = (descend(model, x, targets, 0.02, steps)(x) for model in (teacher, student))
        np.testing.assert_allclose(one, two, atol=1e-12)


def test_bad_input_is_explained():
    kernel, start = jnp.zeros((2, 2, 3, 3)), jnp.zeros((2, 3))
    with pytest.raises(ShapeError, match=r"kernel \[2, 2, 3, 3\]"):
        linearized.gradient_flow(kernel[:1], start, start, jnp.ones(1))
    with pytest.raises(ShapeError, match="test_start"):
        linearized.gradient_flow(kernel, start, start, jnp.ones(1), test_kernel=kernel)
    with pytest.raises(OptionError, match="learning_rate"):
        linearized.gradient_descent(kernel, start, start, jnp.arange(2), learning_rate=0)
