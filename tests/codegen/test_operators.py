"""ONNX operators in C, one by one, against ONNX Runtime; NNX layers against JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_graphs import Graph, check

import nttzoo
from nttzoo import codegen, errors
from nttzoo.codegen import frontend, functions, ir, optimize


def optimized(proto):
    program = frontend.read(proto)
    optimize.optimize(program, codegen.Choices())
    return program.ops


# Functions.

ACTIVATIONS = [
    ("LeakyRelu", {"alpha": 0.2}, 17),
    ("LeakyRelu", {"alpha": -0.5}, 17),  # falls, then rises
    ("Elu", {"alpha": 0.7}, 17),
    ("HardSwish", {}, 17),
    ("Gelu", {}, 20),
    ("Gelu", {"approximate": "tanh"}, 20),
]


@pytest.mark.parametrize(("kind", "options", "opset"), ACTIVATIONS)
@pytest.mark.parametrize("pooled", [False, True])
def test_functions(cache, kind, options, opset, pooled):
    graph = Graph((2, 8, 8), 0.5)
    graph.add("Conv", graph.weight(4, 2, 3, 3), graph.weight(4)).add(kind, **options)
    if pooled:  # a maximum must not move before a function that falls somewhere
        graph.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    graph.add("Flatten").add("Gemm", graph.weight(36 if pooled else 144, 5)).add(kind, **options)
    check(graph.proto(opset=opset), cache)


def test_only_functions_that_never_fall_move_behind_a_maximum():
    def ops(kind, **options):
        graph = Graph((1, 8, 8)).add("Relu")
        graph.add("Conv", graph.weight(2, 1, 3, 3)).add(kind, **options)
        return optimized(graph.add("MaxPool", kernel_shape=[2, 2], strides=[2, 2]).proto(opset=20))

    assert [type(op) for op in ops("LeakyRelu", alpha=0.1)] == [ir.Map, ir.Conv]
    assert [type(op) for op in ops("LeakyRelu", alpha=-0.1)] == [ir.Map, ir.Conv, ir.Pool]
    assert [type(op) for op in ops("Gelu")] == [ir.Map, ir.Conv, ir.Pool]


@pytest.mark.parametrize("name", sorted(functions.FUNCTIONS))
def test_what_is_said_of_functions_is_so(name):
    function = functions.FUNCTIONS[name]
    x = np.linspace(-20, 20, 4001)
    for parameters in {0: [()], 1: [(0.3,), (-0.3,)], 2: [(-1.0, 2.0)]}[len(function.parameters)]:
        with np.errstate(all="ignore"):
            values = function.numpy(x, *parameters)
            rises = bool((np.diff(values) >= 0).all())
            unknown = function.numpy(np.array([np.nan]), *parameters)
        assert rises or not function.never_decreases(*parameters)
        usual = not parameters or parameters[0] > 0  # with a negative slope a function may rise and not be known to
        assert function.never_decreases(*parameters) or not (usual and rises) or np.isnan(values).any()
        assert np.isnan(unknown).all()


# From NNX: what jax2onnx writes as many nodes is one operation again.


class Net(nnx.Module):
    def __init__(self, function, **layers):
        self.function = function
        for name, layer in layers.items():
            setattr(self, name, layer)

    def __call__(self, x):
        return self.function(self, x)


def randomized(model, seed=0):
    """Other scales and biases than ones and zeros."""
    rng = np.random.default_rng(seed)
    for _, value in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        value[...] = jnp.asarray(value[...] + rng.normal(0, 0.3, value[...].shape), jnp.float32)
    return model


def ops_of(model, shape):
    return optimized(codegen._graph(model, "trained", shape)[0])


def agrees_with_jax(model, shape, n=5):
    model.eval()
    x = np.random.default_rng(1).normal(size=(n, *shape)).astype(np.float32)
    expected = np.asarray(model(jnp.asarray(x))).reshape(n, -1)
    answer = nttzoo.compile(model, input_shape=shape)(x)
    assert np.abs(answer - expected).max() <= 1e-5 * np.abs(expected).max()


NNX_FUNCTIONS = {
    "leaky_relu": (nnx.leaky_relu, ("leaky_relu", pytest.approx(0.01))),
    "gelu": (nnx.gelu, ("gelu_tanh",)),
    "gelu of jax": (jax.nn.gelu, ("gelu_tanh",)),
    "gelu with erf": (lambda x: nnx.gelu(x, approximate=False), ("gelu",)),
    "elu": (nnx.elu, ("elu", 1.0)),
    "silu": (nnx.silu, ("silu",)),
    "hard_swish": (nnx.hard_swish, ("hard_swish",)),
    "by hand": (lambda x: jnp.maximum(x, 0.3 * x), ("leaky_relu", pytest.approx(0.3))),
}


@pytest.mark.parametrize("name", NNX_FUNCTIONS)
def test_functions_of_nnx(name):
    function, expected = NNX_FUNCTIONS[name]
    model = randomized(Net(lambda m, x: function(m.linear(x)), linear=nnx.Linear(6, 20, rngs=nnx.Rngs(0))))
    (layer,) = ops_of(model, (6,))
    assert layer.after == [expected]
    agrees_with_jax(model, (6,), n=50)


def test_a_function_that_is_almost_gelu_is_not_taken_for_it():
    almost = Net(lambda m, x: 0.5 * x * (1 + jnp.tanh(0.7978 * (x + 0.0445 * x**3))))
    assert not any(function[0].startswith("gelu") for op in ops_of(almost, (4,)) for function in op.after)
    agrees_with_jax(almost, (4,), n=50)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_group_norm_of_nnx_is_one_operation(groups, affine):
    rngs = nnx.Rngs(0)
    model = Net(
        lambda m, x: nnx.relu(m.norm(m.conv(x))),
        conv=nnx.Conv(3, 8, (3, 3), rngs=rngs),
        norm=nnx.GroupNorm(8, num_groups=groups, epsilon=1e-3, use_bias=affine, use_scale=affine, rngs=rngs),
    )
    for random in (False, True):
        if random:
            randomized(model)
        _, conv, norm, _ = ops_of(model, (7, 6, 3))
        assert isinstance(conv, ir.Conv)
        assert isinstance(norm, ir.GroupNorm)
        assert (norm.groups, norm.epsilon) == (groups, pytest.approx(1e-3))
        assert norm.after == [("relu",)]
        if affine:
            np.testing.assert_array_equal(norm.scale, model.norm.scale[...])
            np.testing.assert_array_equal(norm.bias, model.norm.bias[...])
        agrees_with_jax(model, (7, 6, 3))


def test_layer_norm_of_nnx():
    rngs = nnx.Rngs(0)
    model = randomized(
        Net(lambda m, x: m.norm(m.linear(x)), linear=nnx.Linear(5, 12, rngs=rngs), norm=nnx.LayerNorm(12, rngs=rngs))
    )
    assert [type(op) for op in ops_of(model, (5,))][:2] == [ir.Linear, ir.GroupNorm]
    agrees_with_jax(model, (5,))


class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.convs = nnx.List([nnx.Conv(width, width, (3, 3), rngs=rngs) for _ in range(2)])
        self.norms = nnx.List([nnx.GroupNorm(width, num_groups=2, rngs=rngs) for _ in range(2)])

    def __call__(self, x):
        y = nnx.relu(self.norms[0](self.convs[0](x)))
        return nnx.relu(x + self.norms[1](self.convs[1](y)))


class ResNet(nnx.Module):
    """Group norms, residual sums, average pooling and a global mean."""

    def __init__(self, rngs):
        self.stem = nnx.Conv(3, 6, (3, 3), rngs=rngs)
        self.blocks = nnx.List([Block(6, rngs) for _ in range(2)])
        self.wide = nnx.Conv(6, 8, (3, 3), strides=(2, 2), use_bias=False, rngs=rngs)
        self.head = nnx.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        x = nnx.leaky_relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        x = nnx.gelu(self.wide(nnx.avg_pool(x, window_shape=(2, 2), strides=(2, 2))))
        return self.head(x.mean(axis=(1, 2)))


def test_a_residual_network_of_nnx():
    model = randomized(ResNet(nnx.Rngs(0)))
    ops = [type(op) for op in ops_of(model, (16, 16, 3))]
    assert ops.count(ir.GroupNorm) == 4
    assert ops.count(ir.Map) == 2  # the sums; no view between the layers of a block
    assert ops.count(ir.View) <= 2
    agrees_with_jax(model, (16, 16, 3))


# Norms of ONNX.


@settings(max_examples=15, deadline=None)
@given(
    kind=st.sampled_from(["InstanceNormalization", "GroupNormalization", "LayerNormalization"]),
    first=st.booleans(),
    groups=st.sampled_from([1, 2, 6]),
    opset=st.sampled_from([18, 21]),
)
def test_norms(cache, kind, first, groups, opset):
    graph = Graph((6, 5, 4), 0.5)
    if not first:
        graph.add("Conv", graph.weight(6, 6, 2, 2), graph.weight(6), pads=[0, 0, 1, 1])
    channels = groups if kind == "GroupNormalization" and opset == 18 else 6
    options = {"num_groups": groups} if kind == "GroupNormalization" else {}
    shape = (4,) if kind == "LayerNormalization" else (channels,)
    values = [graph.constant(graph.rng.normal(size=shape).astype(np.float32)) for _ in range(2)]
    graph.add(kind, *values, epsilon=0.01, **options).add("Tanh")
    check(graph.proto(opset=opset), cache)


def test_a_norm_that_reaches_nothing(cache):
    graph = Graph((6,))
    scale, bias = graph.constant(np.ones(6, np.float32)), graph.constant(np.zeros(6, np.float32))
    graph.add("LayerNormalization", scale, bias)
    graph.add("Gemm", graph.constant(np.zeros((6, 3), np.float32)), graph.weight(3))
    check(graph.proto(), cache)


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("kind", ["ReduceMean", "ReduceMax"])
@pytest.mark.parametrize("axes", [[1], [-1], [2, 3], [1, 3], [1, 2, 3]])
def test_means_over_axes(cache, kind, axes, keepdims):
    graph = Graph((3, 4, 5)).add("Relu")
    check(graph.add(kind, axes=axes, keepdims=keepdims).add("Tanh").proto(), cache)


def test_modes_of_training_are_refused():
    graph = Graph((3, 4, 4))
    values = [graph.constant(np.ones(3, np.float32)) for _ in range(4)]
    graph.add("BatchNormalization", *values, training_mode=1)
    graph.nodes[-1].output.extend(["mean", "variance"])
    with pytest.raises(errors.ExportError, match=r"BatchNormalization\) is in training mode"):
        frontend.read(graph.proto())
    graph = Graph((3,))
    graph.add("Dropout", graph.constant(np.float32(0.5)), graph.constant(np.array(True)))
    with pytest.raises(errors.ExportError, match=r"Dropout\) is in training mode"):
        frontend.read(graph.proto())


# Recurrent layers.


class Recurrent(nnx.Module):
    def __init__(self, cell, rngs, **options):
        self.rnn = nnx.RNN(cell(5, 6, rngs=rngs), rngs=rngs, **options)
        self.head = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(self.rnn(x)[:, -1])


@pytest.mark.parametrize("cell", [nnx.GRUCell, nnx.LSTMCell, nnx.OptimizedLSTMCell, nnx.SimpleCell])
@pytest.mark.parametrize("options", [{}, {"reverse": True}, {"reverse": True, "keep_order": True}])
def test_recurrent_layers_of_nnx(cell, options, tmp_path):
    if options and cell is not nnx.GRUCell:
        pytest.skip("the order of steps is that of the layer, not of the cell")
    model = randomized(Recurrent(cell, nnx.Rngs(0), **options))
    agrees_with_jax(model, (4, 5))
    assert nttzoo.export_onnx(model, tmp_path / "m.onnx", input_shape=(4, 5)).difference < 1e-5


def test_weights_of_a_recurrent_layer_are_in_the_c_once():
    model = Recurrent(nnx.GRUCell, nnx.Rngs(0))
    short, long = (codegen.to_source(model, input_shape=(steps, 5))[0].table_bytes for steps in (4, 8))
    weights = sum(value[...].size for _, value in nnx.to_flat_state(nnx.state(model.rnn, nnx.Param)))
    assert long - short < 2 * 4 * weights  # four more copies would be twice as much


def test_tables_of_zeros_of_two_lengths_are_two_tables(cache):
    # Biases come as lists of doubles or as arrays of float32: 16 of these are as many bytes as 32 of those.
    graph = Graph((16,))
    for inputs, outputs, density in ((16, 16, 0.2), (16, 32, 1.0)):
        graph.density = density
        graph.add("Gemm", graph.weight(inputs, outputs), graph.constant(np.zeros(outputs, np.float32))).add("Tanh")
    code = codegen.source_of(graph.proto(), "net")[0].code
    assert "_bias[16] = {" in code
    assert "_bias[32] = {" in code
    check(graph.proto(), cache)


def test_sequences_of_several_lengths_are_refused():
    class Net(Recurrent):
        def __call__(self, x):
            return self.rnn(x, seq_lengths=jnp.full(x.shape[0], 2))

    with pytest.raises(errors.ExportError, match="seq_lengths"):
        nttzoo.compile(Net(nnx.GRUCell, nnx.Rngs(0)), input_shape=(4, 5))


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("after", [0, 1])
def test_recurrent_layers(cache, kind, direction, after):
    if after and kind != "GRU":
        pytest.skip("an option of GRU")
    ways, gates = (2 if direction == "bidirectional" else 1), {"RNN": 1, "GRU": 3, "LSTM": 4}[kind]
    graph = Graph((5, 3), 0.6)
    graph.add("Transpose", perm=[1, 0, 2])
    weights = graph.weight(ways, gates * 4, 3), graph.weight(ways, gates * 4, 4), graph.weight(ways, gates * 8)
    options = {"linear_before_reset": 1} if after else {}
    graph.add(kind, *weights, hidden_size=4, direction=direction, **options)  # [steps, ways, batch, 4]
    check(graph.add("Transpose", perm=[2, 0, 1, 3]).add("Flatten").proto(), cache)
