import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_search import RECIPE

from nttzoo import architectures, search
from nttzoo.nn import merge_params, split_params
from nttzoo.ops import sparse_convolution
from nttzoo.ops.patches import Window
from nttzoo.search import objective
from nttzoo.search.loop import prepare
from nttzoo.sparsity import pruning

SHAPE = (16, 16, 1)
pytestmark = pytest.mark.skipif(
    not sparse_convolution.suits(Window((3, 3), (1, 1), (1, 1), (8, 8)), jnp.float32), reason="no C++ compiler"
)


def lenet5():
    return architectures.create("lenet5", input_shape=SHAPE, num_classes=3, rngs=0)


def draw_images(count):
    return np.random.default_rng(0).normal(size=(count, *SHAPE)).astype(np.float32)


@pytest.mark.parametrize("chosen", [None, jnp.array([[0], [2], [1], [1], [0], [2]])])
@pytest.mark.parametrize("tangents", ["all", "active"])
def test_loss_and_gradient_are_those_of_dense_products(tangents, chosen):
    teacher, x = lenet5(), jnp.asarray(draw_images(6))
    student = pruning.prune(nnx.clone(teacher), "magnitude", density=0.1)
    graph, params, rest = split_params(student)
    seen = objective.behavior(teacher, x, chosen, tangents=tangents)

    def loss(params, sparse):
        coefficients = objective.LossCoefficients(kernel_weight=1.0, weight_decay=0.1)
        options = {"density": 0.1, "coefficients": coefficients, "tangents": tangents, "sparse": sparse}
        return objective.ntt_loss(merge_params(graph, params, rest), seen, x, chosen, **options)[0]

    # Two layers; forward and cotangents, and their derivatives.
    used = str(jax.make_jaxpr(jax.grad(loss), static_argnums=1)(params, True))
    assert used.count("nttzoo_sparse_conv[") >= 2
    assert "nttzoo_conv[" not in used
    dense, sparse = jax.value_and_grad(loss)(params, False), jax.value_and_grad(loss)(params, True)
    for one, two in zip(jax.tree.leaves(dense), jax.tree.leaves(sparse), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4 * float(jnp.abs(one).max()))


def machinery(**change):
    config = search.SearchConfig(model="lenet5", recipe=RECIPE.change(outputs=1, **change), densities=(0.1, 0.5))
    return prepare(lenet5(), draw_images(120), config, None, None)[0]


def test_sparse_students_only_and_the_same_steps_in_any_chunks():
    students = machinery()
    assert students.sparse == [True, False]
    whole = students.advance(students.start(), 0, 4)
    parts = students.advance(students.advance(students.start(), 0, 1), 1, 4)
    for one, two in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        assert np.array_equal(one, two)


def test_a_density_that_falls_counts_from_the_start():
    assert machinery(start_density=0.4, fall=0.5).sparse == [False, False]
