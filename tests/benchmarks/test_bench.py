import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks import estimators, measure
from benchmarks.__main__ import main
from nttzoo.ops.convolution import conv_general_dilated


def flop(function, *arguments):
    return sum(count * product.flop for product, count in measure.products(function, *arguments).items())


def test_products_are_counted_also_inside_loops_and_derivatives():
    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    product = 2 * 3 * 4 * 5
    assert flop(jnp.matmul, a, b) == product
    assert flop(lambda a, b: lax.map(lambda x: jax.jit(jnp.matmul)(x, b), jnp.stack([a] * 7)), a, b) == 7 * product
    assert flop(jax.grad(lambda a, b: jnp.sin(a @ b).sum(), (0, 1)), a, b) == 3 * product
    assert flop(lambda a, b: jnp.einsum("nij,njk->nik", a, b), jnp.ones((7, 3, 4)), jnp.ones((7, 4, 5))) == 7 * product


@pytest.mark.parametrize("groups", [1, 3])
def test_convolutions_are_counted_as_products_that_can_be_timed(groups):
    images, kernel = jnp.ones((2, 8, 9, 3)), jnp.ones((3, 2, 3 // groups, 6))
    layout = lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))

    def convolve(images, kernel):
        options = {"dimension_numbers": layout, "feature_group_count": groups}
        return conv_general_dilated(images, kernel, (1, 1), "VALID", **options)

    pixel = 2 * 3 * 2 * (3 // groups) * 6
    assert flop(convolve, images, kernel) == 2 * 6 * 8 * pixel
    both = jax.grad(lambda images, kernel: jnp.sin(convolve(images, kernel)).sum(), (0, 1))
    assert flop(both, images, kernel) == 3 * 2 * 6 * 8 * pixel
    assert all(product.milliseconds() > 0 for product in measure.products(both, images, kernel))


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


@pytest.mark.parametrize(
    ("arguments", "says"), [(["train"], "name the peer's environment with --peer-python"), (["fly"], "usage: bench")]
)
def test_mistakes_exit_with_2(capsys, arguments, says):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert says in capsys.readouterr().err
