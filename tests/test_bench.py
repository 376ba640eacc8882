import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from nttzoo.bench import estimators, measure
from nttzoo.convolution import conv_general_dilated


def test_products_are_counted_also_inside_loops_and_derivatives():
    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    product = 2 * 3 * 4 * 5
    assert np.isclose(measure.gigaflop(jnp.matmul, a, b) * 1e9, product)
    repeated = lambda a, b: lax.map(lambda x: jax.jit(jnp.matmul)(x, b), jnp.stack([a] * 7))  # noqa: E731
    assert np.isclose(measure.gigaflop(repeated, a, b) * 1e9, 7 * product)
    gradient = jax.grad(lambda a, b: jnp.sin(a @ b).sum(), (0, 1))
    assert np.isclose(measure.gigaflop(gradient, a, b) * 1e9, 3 * product)
    images, kernel = jnp.ones((2, 8, 9, 3)), jnp.ones((3, 2, 3, 5))
    layout = lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))

    def convolve(images, kernel):
        return conv_general_dilated(images, kernel, (1, 1), "VALID", dimension_numbers=layout)

    pixel = 2 * 3 * 2 * 3 * 5
    assert np.isclose(measure.gigaflop(convolve, images, kernel) * 1e9, 2 * 6 * 8 * pixel)
    both = jax.grad(lambda images, kernel: jnp.sin(convolve(images, kernel)).sum(), (0, 1))
    assert np.isclose(measure.gigaflop(both, images, kernel) * 1e9, 3 * 2 * 6 * 8 * pixel)


def test_a_function_runs_in_a_process_of_its_own():
    assert measure.alone(jax.device_count, devices=3) == 3


def test_all_estimators_choose_different_outputs():
    for estimator in estimators.ESTIMATORS:
        chosen = estimators.choose(estimator, jax.random.key(0))
        if estimator.way == "exact":
            assert chosen is None
            continue
        rows = np.asarray(chosen).reshape(-1, estimator.outputs)
        assert len(rows) == (1 if estimator.way == "shared" else estimator.batch)
        assert all(len(set(row)) == estimator.outputs for row in rows.tolist())
