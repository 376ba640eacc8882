import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from nttzoo import architectures, data, nn
from nttzoo.architectures import create
from nttzoo.errors import ModelError, ShapeError, UnknownName
from nttzoo.ops.pooling import max_pool
from nttzoo.sparsity import cost, masks

SMALL = {
    "lenet300": (4, 3, 2),
    "lenet5": (16, 17, 2),
    "conv4": (16, 17, 2),
    "gru": (5, 4, 2),
    "ds_cnn": (6, 7, 2),
    "resnet20": (9, 8, 2),
}


def normal(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


@pytest.fixture(scope="module")
def small():
    """The architectures for images of one's own size, with three classes, in evaluation mode."""
    made = {name: create(name, num_classes=3, input_shape=shape, rngs=0) for name, shape in SMALL.items()}
    for model in made.values():
        model.eval()
    return made


@pytest.mark.parametrize("name", ["lenet300", "conv4", "gru", "ds_cnn"])
def test_a_blank_network_has_the_same_state_without_weights(name):
    options = {"num_classes": 3, "input_shape": (16, 16, 1)}
    made = architectures.create(name, **options, rngs=0)
    spec = data.InputSpec((16, 16, 1), (0.5,), (0.25,), ("a", "b", "c"))
    blank = architectures.blank(name, spec, seed=0)
    assert blank.input_spec == spec
    made.input_spec = spec
    assert nnx.graphdef(blank) == nnx.graphdef(made)
    assert jax.tree.map(jnp.shape, nnx.state(blank)) == jax.tree.map(jnp.shape, nnx.state(made))
    for kind, value in ((nnx.Param, 0), (nn.Mask, 1)):
        assert all(bool((leaf == value).all()) for leaf in jax.tree.leaves(nnx.state(blank, kind)))
    nnx.update(blank, nnx.state(made, nnx.Param))
    x = jnp.ones((2, 16, 16, 1))
    blank.eval(), made.eval()
    np.testing.assert_array_equal(blank(x), made(x))
    blank.train()
    assert blank(x).shape == (2, 3)  # dropout has its random streams


@pytest.mark.parametrize(
    ("name", "size", "multiply_adds"),
    [
        ("lenet300", 266_200, 266_200),
        ("lenet5", 430_500, 2_293_000),
        # 28 steps of (28 + 128) * 3 * 128, then 128 * 10.
        ("gru", 61_184, 1_678_592),
        # 14 * 14 pixels of 40 * 64, then four times 9 * 64 and 64 * 64; 64 * 10.
        ("ds_cnn", 21_888, 4_165_248),
        # He et al.'s: 0.27 million weights, 41 million multiply-adds.
        ("resnet20", 268_336, 40_551_040),
    ],
)
def test_weights_and_multiply_adds(name, size, multiply_adds):
    model = create(name, rngs=0)
    report = masks.density_report(model).total
    assert (report.size, report.kept) == (size, size)
    assert cost.speedup(model).total == cost.LayerCost("total", multiply_adds, multiply_adds, multiply_adds)


@pytest.mark.slow
def test_weights_and_multiply_adds_of_conv4(thin_conv4):
    model, counted = thin_conv4
    assert masks.density_report(model).total.size == 1_903_296
    assert counted.total.dense == 57_462_528


@pytest.mark.parametrize("name", ["lenet5", "conv4"])
@pytest.mark.parametrize("shape", [(15, 16, 1), (16, 15, 1), (4, 40, 1), (2, 2, 1), (1, 1, 1)])
def test_images_that_leave_no_pixel_are_refused(name, shape):
    with pytest.raises(ShapeError, match=f"too small for {name}"):
        create(name, input_shape=shape, rngs=0)


@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 1, 1), (28, 0, 1), (28, 28, -1)])
def test_an_input_shape_is_height_width_channels(shape):
    with pytest.raises(ShapeError, match="height, width, channels"):
        create("lenet300", input_shape=shape, rngs=0)


def test_an_unknown_architecture_lists_the_near_misses():
    with pytest.raises(
        UnknownName,
        match=r"no architecture 'lenet30'.*'lenet300'.*Known: conv4, ds_cnn, gru, lenet300, lenet5, resnet20",
    ):
        create("lenet30", rngs=0)


@pytest.mark.parametrize("classes", [0, -1])
def test_a_classifier_has_a_class(classes):
    with pytest.raises(ModelError, match=rf"num_classes is {classes}; .* 1 or more"):
        create("lenet300", num_classes=classes, rngs=0)


@pytest.mark.parametrize("name", SMALL)
def test_images_of_another_shape_or_type_are_refused(small, name):
    height, width, channels = SMALL[name]
    for wrong in [(2, height, width, channels + 1), (2, width, height, channels), (height, width, channels), (2, 5)]:
        with pytest.raises(ShapeError, match=rf"\[n, {height}, {width}, {channels}\]"):
            small[name](jnp.ones(wrong))
    for dtype in (jnp.uint8, jnp.int32, bool):
        with pytest.raises(ShapeError, match="standardize"):
            small[name](jnp.ones((2, *SMALL[name]), dtype))


def test_dropout_is_conv4s_alone(small):
    for name, model in small.items():
        random_streams = jax.tree.leaves(nnx.state(model, nnx.RngState))
        assert bool(random_streams) == (name == "conv4")


def test_dropout_of_conv4_only_in_training(small):
    model, x = small["conv4"], normal(0, (2, *SMALL["conv4"]))
    run = nnx.jit(lambda model, seed: model(x, rngs=nnx.Rngs(dropout=jax.random.key(seed))))
    np.testing.assert_array_equal(run(model, 1), run(model, 2))
    training = nnx.clone(model)
    training.train()
    assert [training.dropout1.rate, training.dropout2.rate, training.dropout3.rate] == [0.25, 0.25, 0.5]
    first, same, other = (run(training, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, run(model, 1))


def test_weights_are_glorot_normal(thin_conv4):
    for layer in nn.masked_layers(thin_conv4[0]).values():
        kernel = np.asarray(layer.kernel[...])
        window = np.prod(kernel.shape[:-2], dtype=int)
        expected = np.sqrt(2 / (window * (kernel.shape[-2] + kernel.shape[-1])))
        sampling = 1 / np.sqrt(kernel.size)  # more than one standard error of a standard deviation, relative
        assert kernel.std() == pytest.approx(expected, rel=4 * sampling)
        assert abs(kernel.mean()) < 5 * expected * sampling


def test_biases_are_normal_with_standard_deviation_0_01(thin_conv4):
    biases = np.concatenate([layer.bias[...] for layer in nn.masked_layers(thin_conv4[0]).values()])
    assert biases.std() == pytest.approx(0.01, rel=0.12)
    assert abs(biases.mean()) < 0.002


def test_seeds_decide_the_weights():
    first, same, other, from_rngs = (
        create("lenet300", input_shape=(2, 2, 1), rngs=rngs).linear1.kernel[...] for rngs in (0, 0, 1, nnx.Rngs(0))
    )
    np.testing.assert_array_equal(first, same)
    np.testing.assert_array_equal(first, from_rngs)
    assert not np.any(first == other)


def lax_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@pytest.mark.parametrize("shape", [(2, 4, 6, 3), (1, 5, 7, 2), (3, 2, 2, 1), (1, 3, 2, 1), (2, 1, 4, 1)])
def test_max_pool_and_its_gradient_are_those_of_reduce_window(shape):
    x = normal(0, shape)
    cotangent = normal(1, (shape[0], shape[1] // 2, shape[2] // 2, shape[3]))
    value, pull = jax.vjp(max_pool, x)
    expected, expected_pull = jax.vjp(lax_pool, x)
    np.testing.assert_array_equal(value, expected)
    np.testing.assert_array_equal(value, nnx.max_pool(x, (2, 2), (2, 2)))
    np.testing.assert_array_equal(pull(cotangent)[0], expected_pull(cotangent)[0])


@pytest.mark.parametrize(
    ("window", "gradient"),
    [
        ([[1, 1], [1, 1]], [[1, 0], [0, 0]]),
        ([[0, 1], [1, 0]], [[0, 1], [0, 0]]),
        ([[0, 0], [2, 2]], [[0, 0], [1, 0]]),
        ([[0, 0], [0, 3]], [[0, 0], [0, 1]]),
        ([[-1, -2], [-1, -1]], [[1, 0], [0, 0]]),
    ],
)
def test_the_gradient_of_tied_pixels_goes_to_the_first_alone(window, gradient):
    x = jnp.array(window, float)[None, ..., None]
    np.testing.assert_array_equal(jax.grad(lambda x: max_pool(x).sum())(x)[0, ..., 0], gradient)
    assert max_pool(x)[0, 0, 0, 0] == np.max(window)


@pytest.mark.parametrize("where", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_max_pool_passes_nan_and_infinity_on(where):
    x = jnp.ones((1, 2, 2, 1))
    for value in (jnp.nan, jnp.inf):
        np.testing.assert_array_equal(max_pool(x.at[0, *where, 0].set(value)), np.full((1, 1, 1, 1), value))


def dense(params, x):
    return x @ params["kernel"] + params["bias"][None]


def conv(params, x):
    y = lax.conv_general_dilated(x, params["kernel"], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return y + params["bias"][None, None, None]


def conv4_by_hand(params, x):
    relu = jax.nn.relu
    x = lax_pool(relu(conv(params["conv2"], relu(conv(params["conv1"], x)))))
    x = lax_pool(relu(conv(params["conv4"], relu(conv(params["conv3"], x)))))
    return dense(params["linear2"], relu(dense(params["linear1"], x.reshape(len(x), -1))))


def lenet5_by_hand(params, x):
    x = lax_pool(jax.nn.relu(conv(params["conv1"], x)))
    x = lax_pool(jax.nn.relu(conv(params["conv2"], x)))
    return dense(params["linear2"], jax.nn.relu(dense(params["linear1"], x.reshape(len(x), -1))))


def lenet300_by_hand(params, x):
    x = jax.nn.relu(dense(params["linear1"], x.reshape(len(x), -1)))
    return dense(params["linear3"], jax.nn.relu(dense(params["linear2"], x)))


@pytest.mark.parametrize("by_hand", [lenet300_by_hand, lenet5_by_hand, conv4_by_hand])
def test_forward_pass_and_gradient_by_hand(small, by_hand):
    name = by_hand.__name__.removesuffix("_by_hand")
    model = nnx.clone(small[name])
    for seed, layer in enumerate(nn.masked_layers(model).values()):
        layer.mask[...] = normal(seed, layer.mask.shape) > 0
        layer.bias[...] = normal(seed, layer.bias.shape)
    graph, params, rest = nn.split_params(model)
    kernels_masked = {
        str(path[0]): {"kernel": layer.masked_kernel(), "bias": layer.bias[...]}
        for path, layer in nn.masked_layers(model).items()
    }
    x = normal(9, (3, *SMALL[name]))
    loss = lambda f: lambda p, x: (jnp.square(y := f(p, x)).sum(), y)  # noqa: E731
    (_, ours), by_ours = jax.jit(jax.value_and_grad(loss(lambda p, x: nnx.merge(graph, p, rest)(x)), has_aux=True))(
        params, x
    )
    (_, theirs), by_theirs = jax.jit(jax.value_and_grad(loss(by_hand), has_aux=True))(kernels_masked, x)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * abs(theirs).max())
    for path, layer in nn.masked_layers(model).items():
        expected = by_theirs[path[0]]["kernel"] * layer.mask[...]
        got = by_ours[path[0]]["kernel"][...]
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4 * abs(expected).max())


def norm(x, params, groups=8):
    """Group normalization of [n, h, w, c]."""
    n, h, w, c = x.shape
    split = x.reshape(n, h * w, groups, c // groups)
    mean, variance = split.mean((1, 3), keepdims=True), split.var((1, 3), keepdims=True)
    return ((split - mean) / np.sqrt(variance + 1e-6)).reshape(x.shape) * params["scale"] + params["bias"]


def same_conv(x, kernel, stride=1, groups=1):
    """A convolution with SAME padding, as a sum over the pixels of its window."""
    height, width = (-(-size // stride) for size in x.shape[1:3])
    sizes = zip((height, width), kernel.shape[:2], x.shape[1:3], strict=True)
    pads = [max((out - 1) * stride + window - size, 0) for out, window, size in sizes]
    x = np.pad(x, [(0, 0), *((pad // 2, pad - pad // 2) for pad in pads), (0, 0)])
    total = 0.0
    for i, j in np.ndindex(kernel.shape[:2]):
        seen = x[:, i : i + height * stride : stride, j : j + width * stride : stride][:, :height, :width]
        total = total + (seen * kernel[i, j, 0] if groups > 1 else seen @ kernel[i, j])
    return total


def arrays(model):
    """The parameters as nested dictionaries of float64 arrays, pruned weights zero."""
    model = nn.densify(model)
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), nnx.to_pure_dict(nnx.state(model, nnx.Param)))


def gru_by_hand(p, x):
    sigmoid = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    cell, state = p["recurrent"]["cell"], np.zeros((len(x), 128))
    for row in range(x.shape[1]):
        i = x[:, row].reshape(len(x), -1) @ cell["dense_i"]["kernel"] + cell["dense_i"]["bias"]
        h = state @ cell["dense_h"]["kernel"]
        reset, update = (sigmoid((i + h)[:, part : part + 128]) for part in (0, 128))
        state = (1 - update) * np.tanh(i[:, 256:] + reset * h[:, 256:]) + update * state
    return state @ p["output"]["kernel"] + p["output"]["bias"]


def ds_cnn_by_hand(p, x):
    x = np.maximum(norm(same_conv(x, p["stem"]["kernel"], stride=2), p["norm"]), 0)
    for block in p["blocks"].values():
        x = np.maximum(norm(same_conv(x, block["depthwise"]["kernel"], groups=64), block["norm1"]), 0)
        x = np.maximum(norm(x @ block["pointwise"]["kernel"][0, 0], block["norm2"]), 0)
    return x.mean((1, 2)) @ p["output"]["kernel"] + p["output"]["bias"]


def resnet20_by_hand(p, x):
    x = np.maximum(norm(same_conv(x, p["stem"]["kernel"]), p["norm"]), 0)
    for number, block in p["blocks"].items():
        stride = 2 if number in (3, 6) else 1
        y = np.maximum(norm(same_conv(x, block["conv1"]["kernel"], stride), block["norm1"]), 0)
        y = norm(same_conv(y, block["conv2"]["kernel"]), block["norm2"])
        shortcut = x[:, ::stride, ::stride]
        x = np.maximum(y + np.pad(shortcut, [(0, 0)] * 3 + [(0, y.shape[3] - shortcut.shape[3])]), 0)
    return x.mean((1, 2)) @ p["output"]["kernel"] + p["output"]["bias"]


@pytest.mark.parametrize("by_hand", [gru_by_hand, ds_cnn_by_hand, resnet20_by_hand])
def test_forward_pass_in_numpy(small, by_hand):
    name = by_hand.__name__.removesuffix("_by_hand")
    model = nnx.clone(small[name])
    for seed, layer in enumerate(nn.masked_layers(model).values()):
        layer.mask[...] = normal(seed, layer.mask.shape) > 0
    x = normal(9, (3, *SMALL[name]))
    expected = by_hand(arrays(model), np.asarray(x, np.float64))
    np.testing.assert_allclose(nnx.jit(lambda m, x: m(x))(model, x), expected, rtol=1e-4, atol=1e-4)


def test_the_registry_holds_the_papers_three_and_three_more():
    assert sorted(architectures.ARCHITECTURES) == ["conv4", "ds_cnn", "gru", "lenet300", "lenet5", "resnet20"]
