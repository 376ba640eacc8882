import os
import subprocess
import sys
from contextlib import nullcontext
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax import lax

from nttzoo.ops import convolution, patches, winograd
from nttzoo.ops.convolution import conv_general_dilated


def channels_last(space):
    images = (0, space + 1, *range(1, space + 1))
    return lax.ConvDimensionNumbers(images, (space + 1, space, *range(space)), images)


def draw_array(seed, shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


@st.composite
def convolutions(draw):
    space = draw(st.sampled_from([1, 2, 2, 3]))
    per_axis = lambda low, high: draw(st.tuples(*[st.integers(low, high)] * space))  # noqa: E731
    groups = draw(st.integers(1, 3))
    inputs, outputs = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    # Negative padding cuts; it is a rule of lax that a dilated input has explicit padding.
    explicit = st.tuples(*[st.tuples(st.integers(-1, 2), st.integers(-1, 2))] * space)
    padding = draw(st.sampled_from(["SAME", "VALID", "SAME_LOWER"]) | explicit)
    options = {
        "window_strides": per_axis(1, 3),
        "padding": padding,
        "lhs_dilation": None if isinstance(padding, str) else per_axis(1, 2),
        "rhs_dilation": per_axis(1, 2),
        "dimension_numbers": channels_last(space),
        "feature_group_count": groups,
    }
    x_shape = (draw(st.integers(1, 5)), *per_axis(2, 5), groups * inputs)
    return options, x_shape, (*per_axis(1, 3), inputs, groups * outputs)


@settings(max_examples=8, phases=[Phase.generate])  # shapes are small already; shrinking compiles each
@given(convolutions(), st.sampled_from([1, 400, patches.CHUNK_BYTES]))
def test_values_and_derivatives_are_those_of_lax(drawn, chunk_bytes):
    with mock.patch.object(patches, "CHUNK_BYTES", chunk_bytes):
        check_values_and_derivatives(*drawn)


@settings(max_examples=3, phases=[Phase.generate])
@given(st.tuples(*[st.integers(3, 8)] * 2), st.sampled_from(["SAME", "VALID"]), st.sampled_from([1, 4]))
def test_values_and_derivatives_by_winograd_are_those_of_lax(size, padding, n):
    options = {"window_strides": (1, 1), "padding": padding, "dimension_numbers": channels_last(2)}
    with (
        mock.patch.object(convolution, "WINOGRAD_CHANNELS", 1),
        mock.patch.object(winograd, "PIECES", 4),
        mock.patch.object(winograd, "conv", wraps=winograd.conv) as used,
    ):
        check_values_and_derivatives(options, (n, *size, 2), (3, 3, 2, 3))
    assert used.called


def test_winograd_in_single_precision_at_its_usual_sizes():
    x, kernel = (jnp.asarray(draw_array(*drawn), jnp.float32) for drawn in ((0, (2, 13, 12, 16)), (1, (3, 3, 16, 32))))
    options = {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": channels_last(2)}

    def everything(conv):
        return jax.value_and_grad(lambda x, k: jnp.sin(conv(x, k, **options)).sum(), (0, 1))(x, kernel)

    with mock.patch.object(winograd, "conv_to_kernel", wraps=winograd.conv_to_kernel) as used:
        ours = everything(conv_general_dilated)
    assert used.called
    for got, expected in zip(*map(jax.tree.leaves, (ours, everything(lax.conv_general_dilated))), strict=True):
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("in_axes", "most"),
    [((0, None), 2**28), ((0, None), 30_000), ((None, 0), 2**28), ((0, 0), 2**28)],
    ids=["images", "too many images", "kernels", "both"],
)
def test_winograd_under_vmap(in_axes, most, monkeypatch):
    monkeypatch.setattr(convolution, "WINOGRAD_BYTES", most)
    shapes = (2, 5, 6, 16), (3, 3, 16, 16)
    arrays = [
        jnp.asarray(draw_array(i, shape if axis is None else (3, *shape)), jnp.float32)
        for i, (shape, axis) in enumerate(zip(shapes, in_axes, strict=True))
    ]

    def many(conv):
        run = lambda x, k: conv(x, k, (1, 1), "SAME", dimension_numbers=channels_last(2))  # noqa: E731
        return jax.value_and_grad(lambda x, k: jnp.sin(jax.vmap(run, in_axes)(x, k)).sum(), (0, 1))(*arrays)

    ours, theirs = (jax.tree.leaves(many(conv)) for conv in (conv_general_dilated, lax.conv_general_dilated))
    for got, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("where", ["integers", "half precision", "few channels", "much memory", "patches are wanted"])
def test_where_winograd_does_not_pay_patches_are_unfolded(where, monkeypatch):
    dtype = {"integers": jnp.int32, "half precision": jnp.bfloat16}.get(where, jnp.float32)
    channels = 4 if where == "few channels" else 16
    x, kernel = jnp.ones((2, 5, 5, channels), dtype), jnp.ones((3, 3, channels, 16), dtype)
    if where == "much memory":
        monkeypatch.setattr(convolution, "WINOGRAD_BYTES", 1000)
    monkeypatch.setattr(winograd, "conv", None)  # would fail
    around = convolution.unfolding() if where == "patches are wanted" else nullcontext()
    with around:
        y = conv_general_dilated(x, kernel, (1, 1), "VALID", dimension_numbers=channels_last(2))
    assert (y == 9 * channels).all()


def check_values_and_derivatives(options, x_shape, kernel_shape):
    with jax.enable_x64(True):
        arrays = [draw_array(seed, shape) for seed, shape in enumerate([x_shape, kernel_shape] * 2)]

        def everything(conv, x, kernel, dx, dkernel):
            def run(x, kernel):
                return conv(x, kernel, **options)

            def loss(x, kernel):
                return jnp.sin(run(x, kernel)).sum()

            def squared_gradient(x, kernel):
                by_x, by_kernel = jax.grad(loss, (0, 1))(x, kernel)
                return jnp.square(by_x).sum() + (by_x.sum() * by_kernel).sum()

            y, dy = jax.jvp(run, (x, kernel), (dx, dkernel))
            first = jax.grad(loss, (0, 1))(x, kernel)
            second = jax.grad(squared_gradient, (0, 1))(x, kernel)
            return y, dy, first, second

        convs = conv_general_dilated, lax.conv_general_dilated
        ours, theirs = jax.jit(lambda *arrays: [everything(conv, *arrays) for conv in convs])(*arrays)
        for got, expected in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            assert got.dtype == expected.dtype == jnp.float64
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10 * max(1, abs(expected).max(initial=0)))


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (1, 4)], ids=["images", "kernels", "both"])
def test_values_and_gradients_under_vmap_are_those_of_lax(x64, in_axes):
    x, kernel = draw_array(0, (2, 5, 5, 2)), draw_array(1, (3, 2, 2, 3))
    many_x, many_kernels = (
        v if axis is None else jnp.stack([v, v + 1, -v], axis) for v, axis in zip((x, kernel), in_axes, strict=True)
    )

    def many(conv):
        run = lambda x, k: conv(x, k, (1, 2), "SAME", dimension_numbers=channels_last(2))  # noqa: E731
        loss = lambda x, k: jnp.square(jax.vmap(run, in_axes)(x, k)).sum()  # noqa: E731
        return jax.value_and_grad(loss, (0, 1))(many_x, many_kernels)

    ours, theirs = jax.jit(lambda: (many(conv_general_dilated), many(lax.conv_general_dilated)))()
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), ours, theirs)


X, KERNEL = np.ones((4, 5, 5, 2), np.float32), np.ones((3, 3, 2, 4), np.float32)
HALF, HALF_KERNEL = X.astype(np.float16), KERNEL.astype(np.float16)


@pytest.mark.parametrize(
    ("x", "kernel", "options"),
    [
        (HALF, HALF_KERNEL, {"dimension_numbers": channels_last(2), "preferred_element_type": jnp.float32}),
        (X, KERNEL, {"dimension_numbers": channels_last(2), "precision": lax.Precision.HIGHEST}),
        (X, KERNEL, {"dimension_numbers": channels_last(2), "batch_group_count": 2}),
        (X, KERNEL, {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}),
        (X.transpose(0, 3, 1, 2), KERNEL.transpose(3, 2, 0, 1), {}),
        (X[:0], KERNEL, {"dimension_numbers": channels_last(2)}),
        (X[:, :1], KERNEL, {"dimension_numbers": channels_last(2)}),
    ],
    ids=["result type", "precision", "batch groups", "names of axes", "channels first", "no image", "large window"],
)
def test_every_option_of_lax_means_the_same(x, kernel, options):
    ours = conv_general_dilated(x, kernel, (1, 1), "VALID", **options)
    theirs = lax.conv_general_dilated(x, kernel, (1, 1), "VALID", **options)
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_what_lax_refuses_is_refused():
    options = {"lhs_dilation": (2, 2), "dimension_numbers": channels_last(2)}
    with pytest.raises(ValueError, match="padding") as theirs:
        lax.conv_general_dilated(X, KERNEL, (1, 1), "SAME", **options)
    with pytest.raises(ValueError, match="padding") as ours:
        conv_general_dilated(X, KERNEL, (1, 1), "SAME", **options)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    ("channels", "window", "groups"), [(8, (1, 1, 1, 4), 1), (1, (1, 1, 8, 4), 1), (6, (1, 1, 1, 6), 2)]
)
def test_channels_that_do_not_fit_are_refused_as_lax_does(channels, window, groups):
    options = {"dimension_numbers": channels_last(2), "feature_group_count": groups}
    with pytest.raises((TypeError, ValueError), match="feature"):
        conv_general_dilated(jnp.ones((2, 4, 4, channels)), jnp.ones(window), (1, 1), "VALID", **options)


def test_no_images_at_all_under_vmap():
    def conv(x):
        kernel = jnp.ones((3, 3, 2, 3))
        return conv_general_dilated(x[None], kernel, (1, 1), "SAME", dimension_numbers=channels_last(2))[0]

    assert jax.vmap(conv)(jnp.zeros((0, 5, 5, 2))).shape == (0, 5, 5, 3)


DATA_PARALLEL = """
import jax, jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P
from nttzoo import architectures

for name in ("lenet5", "conv4"):
    model = architectures.create(name, input_shape=(16, 16, 1), rngs=0)
    model.eval()
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    x = jax.random.normal(jax.random.key(1), (4, 16, 16, 1))
    loss = lambda p, x: jnp.mean(nnx.merge(graph, p, rest, copy=True)(x) ** 2)
    slope = lambda p, x: jax.grad(lambda p: lax.pmean(loss(p, x), "d"))(p)
    mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
    shared = jax.jit(jax.shard_map(slope, mesh=mesh, in_specs=(P(), P("d")), out_specs=P()))(params, x)
    alone = jax.jit(jax.grad(loss))(params, x)
    for one, two in zip(jax.tree.leaves(shared), jax.tree.leaves(alone), strict=True):
        assert jnp.abs(one - two).max() <= 1e-5 * jnp.abs(two).max(), name
"""


@pytest.mark.slow
def test_gradients_shared_by_two_devices():
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=2"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", DATA_PARALLEL]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-2000:]
