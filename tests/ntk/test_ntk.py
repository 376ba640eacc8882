import itertools

import jax
import jax.numpy as jnp
import networks
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from neural_tangents_compat import import_neural_tangents

import nttzoo
from nttzoo import nn
from nttzoo.errors import ModelError, OptionError, ShapeError
from nttzoo.ntk import empirical_ntk, kernel_distance, spread_outputs
from nttzoo.ntk.blocks import block_sizes, kernel_blocks
from nttzoo.ntk.factors import dense_rows, shares
from nttzoo.sparsity import pruning

pytestmark = pytest.mark.usefixtures("x64")

TANGENTS = ("all", "active")
trusted = pytest.mark.usefixtures("trusted_rules")


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def by_jacrev(model, x1, x2, tangents):
    """The full kernel from jax.jacrev over all parameters: mask applied ("active") or multiplied in before ("all")."""
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    point = nnx.clone(model)
    if tangents == "all":
        for _, layer in nnx.iter_modules(point):
            if hasattr(layer, "kernel") and isinstance(getattr(layer, "mask", None), nn.Mask):
                layer.kernel[...] = layer.kernel[...] * layer.mask[...]
                layer.mask[...] = jnp.ones_like(layer.mask[...])
    graph, params, rest = nnx.split(point, nnx.Param, ...)

    @jax.jit
    def rows(params, x):
        jacobian = jax.jacrev(lambda p: nnx.merge(graph, p, rest, copy=True)(x))(params)
        return jnp.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(jacobian)], -1)

    return jnp.einsum("nrd,msd->nmrs", rows(params, x1), rows(params, x2))


def pruned(model, density=0.4):
    return pruning.prune(nttzoo.sparsify(model), "magnitude", density=density)


def close(one, two, tolerance=1e-9):
    np.testing.assert_allclose(one, two, rtol=0, atol=tolerance * float(jnp.abs(two).max()))


@trusted
@pytest.mark.parametrize("name", [slow(name) if name in networks.LARGE else name for name in networks.BUILDERS])
@pytest.mark.parametrize("tangents", TANGENTS)
def test_kernel_equals_the_dense_jacobian(name, tangents):
    model, x1, x2 = networks.build(name)
    model = pruned(model)
    expected = by_jacrev(model, x1, x2, tangents)
    close(empirical_ntk(model, x1, x2, tangents=tangents), expected)
    if name in networks.LARGE:
        return  # each further program takes as long again
    trace = empirical_ntk(model, x1, x2, tangents=tangents, outputs="trace")
    close(trace, jnp.einsum("nmrr->nm", expected))
    active = tangents == "active"
    close(kernel_blocks(model, x1, x2, None, trace=False, active=active, find_shares=dense_rows), expected)


@trusted
@pytest.mark.parametrize("name", ["lenet5", "residual", "attention"])
def test_dense_models_without_masks_need_no_sparsify(name):
    model, x1, x2 = networks.build(name)
    if name == "lenet5":
        model.conv1.mask[...] = jnp.ones_like(model.conv1.mask[...])
    close(empirical_ntk(model, x1, x2), by_jacrev(model, x1, x2, "active"))


def test_parameters_that_taps_cannot_see_are_named_once_and_still_counted():
    model = networks.Scanned(nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (3, 2, 3))
    with pytest.warns(UserWarning, match=r": tied\.kernel\.") as caught:
        kernel = empirical_ntk(model, x)
    assert [str(warning.message).count("last.kernel") for warning in caught] == [0]
    empirical_ntk(model, x[:2])  # a second warning would be an error
    close(kernel, by_jacrev(model, x, x, "active"))


def test_an_embedding_takes_integer_tokens():
    model = networks.Tokens(nnx.Rngs(0))
    tokens = jnp.array([[0, 1, 1], [4, 2, 0]])
    close(empirical_ntk(model, tokens), by_jacrev(model, tokens, tokens, "active"))


def test_a_custom_product_is_not_taken_for_the_ordinary_one():
    def doubled(*args, **kwargs):
        return 2 * jax.lax.dot_general(*args, **kwargs)

    model = nnx.Linear(3, 2, dot_general=doubled, rngs=nnx.Rngs(0), **networks.DOUBLE)
    x = jax.random.normal(jax.random.key(0), (2, 3))
    close(empirical_ntk(model, x), by_jacrev(model, x, x, "active"))


@pytest.mark.slow
@trusted
@pytest.mark.parametrize(
    ("name", "for_one_example", "outputs"),
    [slow("lenet5", 5_000_000, "full"), ("gru", 20_000, "full"), slow("gru", 20_000, "trace")],
)
def test_blocks_give_the_same_kernel_and_gradient(name, for_one_example, outputs):
    model, x1, x2 = networks.build(name)
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def total(params, memory):
        merged = nnx.merge(graph, params, rest, copy=True)
        return jnp.sin(empirical_ntk(merged, x1, x2, outputs=outputs, memory=memory)).sum()

    step = jax.jit(jax.value_and_grad(total), static_argnums=1)
    # All at once; one example at a time; one output of one example at a time.
    memories = (2**30, for_one_example, 1)
    sizes = [block_sizes(model, x1, None, False, memory, shares) for memory in memories]
    assert [(size.block, size.outputs == size.all_outputs) for size in sizes[1:]] == [(1, True), (1, False)]
    whole, *others = (step(params, memory) for memory in memories)
    for blocks in others:
        for one, two in zip(jax.tree.leaves(blocks), jax.tree.leaves(whole), strict=True):
            close(one, two)


@trusted
@pytest.mark.parametrize("name", ["lenet300", slow("lenet5"), "residual"])
@pytest.mark.parametrize("tangents", TANGENTS)
def test_gradient_of_the_kernel_loss_equals_that_through_the_dense_jacobian(name, tangents):
    model, x1, x2 = networks.build(name)
    model = pruned(model)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    teacher = jax.random.normal(jax.random.key(9), (3, 2, 3, 3))

    def loss(params, kernel):
        return jnp.mean(jnp.square(kernel(nnx.merge(graph, params, rest, copy=True)) - teacher))

    @jax.jit
    def ours(params):
        return jax.grad(
            lambda p: kernel_distance(nnx.merge(graph, p, rest, copy=True), teacher, x1, x2, tangents=tangents)
        )(params)

    dense = jax.jit(lambda params: jax.grad(loss)(params, lambda m: by_jacrev(m, x1, x2, tangents)))
    for one, two in zip(*map(jax.tree.leaves, (ours(params), dense(params))), strict=True):
        close(one, two)


@trusted
@pytest.mark.parametrize("name", ["lenet300", "strided"])
def test_kernel_of_a_set_with_itself_is_symmetric_and_positive_semidefinite(name):
    model, x, _ = networks.build(name)
    kernel = empirical_ntk(model, x)
    matrix = np.asarray(kernel.transpose(0, 2, 1, 3).reshape(9, 9))
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
    assert np.linalg.eigvalsh(matrix).min() > -1e-9 * matrix.max()


@trusted
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["lenet300", "lenet5", slow("conv4")])
@pytest.mark.parametrize("implementation", ["JACOBIAN_CONTRACTION", "NTK_VECTOR_PRODUCTS"])
def test_kernel_equals_that_of_neural_tangents(name, implementation):
    nt = import_neural_tangents()
    model, x1, x2 = networks.build(name)
    pruning.prune(model, "magnitude", density=0.4)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    peer = nt.empirical_ntk_fn(
        lambda p, x, **_: nnx.merge(graph, p, rest, copy=True)(x),
        trace_axes=(),
        vmap_axes=0,
        implementation=nt.NtkImplementation[implementation],
    )
    close(empirical_ntk(model, x1, x2, tangents="active"), jax.jit(peer)(x1, x2, params))


@trusted
def test_distance_is_the_mean_squared_entry_of_the_difference():
    student, x1, x2 = networks.build("lenet300")
    teacher = networks.paper("lenet300", (5, 4, 1), seed=5)
    expected = jnp.mean((by_jacrev(student, x1, x2, "all") - by_jacrev(teacher, x1, x2, "all")) ** 2)
    close(kernel_distance(student, teacher, x1, x2), expected)
    close(kernel_distance(student, empirical_ntk(teacher, x1, x2), x1, x2), expected)


@trusted
@pytest.mark.parametrize("sampled", [2, 3])
def test_sampled_outputs_estimate_the_distance_without_bias(sampled):
    student, teacher = (networks.paper("lenet300", (3, 3, 1), classes=4, seed=seed) for seed in (0, 1))
    x = jax.random.normal(jax.random.key(0), (4, 3, 3, 1))
    exact = kernel_distance(student, teacher, x[:2], x[2:])
    subsets = list(itertools.combinations(range(4), sampled))
    estimates = [kernel_distance(student, teacher, x[:2], x[2:], outputs=jnp.array(s)) for s in subsets]
    close(jnp.mean(jnp.array(estimates)), exact)
    assert np.std(estimates) > 0
    full = empirical_ntk(teacher, x[:2], x[2:])
    close(kernel_distance(student, full, x[:2], x[2:], outputs=jnp.array(subsets[0])), estimates[0])


@trusted
@pytest.mark.parametrize("sampled", [1, 2, 3])
@pytest.mark.parametrize("memory", [None, 1])
def test_each_examples_own_outputs_estimate_the_distance_without_bias(sampled, memory):
    student, teacher = (networks.paper("lenet300", (3, 3, 1), seed=seed) for seed in (0, 1))
    x = jax.random.normal(jax.random.key(0), (6, 3, 3, 1))
    full = empirical_ntk(teacher, x[:3], x[3:])
    estimate = jax.jit(
        lambda teacher, chosen: kernel_distance(student, teacher, x[:3], x[3:], outputs=chosen, memory=memory)
    )
    drawn = np.asarray(spread_outputs(jax.random.key(1), 6, 3, sampled))
    # With both halves' outputs shifted by all amounts, every pair of outputs meets once for every pair of examples.
    shifts = [np.repeat(pair, 3)[:, None] for pair in itertools.product(range(3), repeat=2)]
    estimates = [estimate(full, (drawn + shift) % 3) for shift in shifts]
    close(jnp.mean(jnp.array(estimates)), kernel_distance(student, teacher, x[:3], x[3:]))
    assert sampled == 3 or np.std(estimates) > 0
    close(estimate(teacher, drawn), estimate(full, drawn))
    # Also where both halves are one array.
    one, two = (kernel_distance(student, teacher, x, other, outputs=np.tile(drawn, (2, 1))) for other in (x, x + 0))
    close(one, two)


@settings(max_examples=10)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 5), st.integers(0, 99))
def test_outputs_are_spread_evenly_over_both_halves(half, total, sampled, seed):
    sampled = min(sampled, total)
    chosen = np.asarray(spread_outputs(jax.random.key(seed), 2 * half, total, sampled))
    assert chosen.shape == (2 * half, sampled)
    assert all(len(set(row)) == sampled for row in chosen.tolist())
    for rows in (chosen[:half], chosen[half:]):
        counts = np.bincount(rows.ravel(), minlength=total)
        assert len(counts) == total
        assert np.ptp(counts) <= 1


@trusted
def test_one_shared_output_sees_the_diagonal_only():
    student = networks.paper("lenet300", (3, 3, 1))
    x = jax.random.normal(jax.random.key(0), (4, 3, 3, 1))
    kernel = empirical_ntk(student, x[:2], x[2:])
    zero = jnp.zeros((2, 2, 1, 1))
    estimate = kernel_distance(student, zero, x[:2], x[2:], outputs=jnp.array([1]))
    close(estimate, jnp.mean(kernel[:, :, 1, 1] ** 2) / 3)


@trusted
def test_sampled_outputs_may_be_drawn_inside_jit():
    student, x1, x2 = networks.build("lenet300")
    zero = jnp.zeros((3, 2, 3, 3))
    run = jax.jit(lambda chosen: kernel_distance(student, zero, x1, x2, outputs=chosen))
    expected = kernel_distance(student, zero, x1, x2, outputs=jnp.array([0, 2]))
    close(run(jnp.array([2, 0])), expected)
    known = jnp.array([0, 2])
    close(jax.jit(lambda x1: kernel_distance(student, zero, x1, x2, outputs=known))(x1), expected)


@trusted
def test_single_precision_agrees_with_double():
    model, x1, x2 = networks.build("lenet5")
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.float64 else leaf, model)
    kernel = empirical_ntk(single, x1.astype(jnp.float32), x2.astype(jnp.float32))
    assert kernel.dtype == jnp.float32
    close(kernel, empirical_ntk(model, x1, x2), 1e-5)


def test_bad_input_is_explained():
    model, x, _ = networks.build("lenet300")
    with pytest.raises(ShapeError, match="x1 is empty"):
        empirical_ntk(model, x[:0])
    with pytest.raises(ShapeError, match="one shape"):
        empirical_ntk(model, x, x[:, :4])
    with pytest.raises(ShapeError, match="standardize"):
        empirical_ntk(model, (x * 9).astype(jnp.uint8))
    with pytest.raises(OptionError, match="'all', 'active'"):
        empirical_ntk(model, x, tangents="some")
    with pytest.raises(OptionError, match="'full', 'trace'"):
        empirical_ntk(model, x, outputs="diagonal")
    with pytest.raises(ShapeError, match="teacher's kernel"):
        kernel_distance(model, jnp.zeros((3, 3)), x, x)
    for outputs in ([0, 0], [3], [-1], [], [0.5], [[0]], [[0, 0]] * 6):
        with pytest.raises(OptionError, match="outputs must be"):
            kernel_distance(model, model, x, x, outputs=jnp.array(outputs))
    for odd in ((3, 4, 1), (4, 4, 5), (4, 4, 0)):
        with pytest.raises(OptionError, match=r"cannot spread|sampled is 0; it must be a whole number, 1 or more"):
            spread_outputs(jax.random.key(0), *odd)
    with pytest.raises(ModelError, match=r"outputs \[n, o\]"):
        empirical_ntk(nnx.Conv(1, 2, (3, 3), rngs=nnx.Rngs(0)), x)


def test_training_mode_is_refused_with_the_way_out():
    conv4, x, _ = networks.build("conv4")
    conv4.train()
    with pytest.raises(ModelError, match=r"dropout1.*model\.eval\(\)"):
        empirical_ntk(conv4, x)
    residual, x, _ = networks.build("residual")
    residual.train()
    with pytest.raises(ModelError, match=r"batch.*model\.eval\(\)"):
        empirical_ntk(residual, x)


def test_a_teacher_in_training_mode_is_refused_too():
    teacher, x, _ = networks.build("conv4")
    student = nnx.clone(teacher)
    teacher.train()
    with pytest.raises(ModelError, match=r"dropout1.*model\.eval\(\)"):
        kernel_distance(student, teacher, x, x)


def test_a_kernel_that_is_not_finite_names_the_layer():
    model, x, _ = networks.build("lenet300")
    model.linear3.bias[...] = jnp.zeros(3)
    model.linear2.kernel[...] = model.linear2.kernel[...] * 1e300
    with pytest.raises(ModelError, match=r"not finite.*linear"):
        empirical_ntk(model, x)
