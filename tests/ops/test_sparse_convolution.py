import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nttzoo._util.libraries import find_compiler
from nttzoo.errors import ExportError
from nttzoo.ops import convolution, sparse_convolution
from nttzoo.ops.patches import Window

try:
    find_compiler("C++")
    compiler = True
except ExportError:
    compiler = False
needs_compiler = pytest.mark.skipif(not compiler, reason="there is no C++ compiler")

# images, height, width, channels, outputs, window, density
SHAPES = [
    (3, 9, 7, 3, 20, (5, 5), 0.2),
    (32, 12, 12, 20, 50, (5, 5), 0.05),  # LeNet-5's second
    (17, 14, 14, 64, 70, (3, 3), 0.03),  # a block of 16 images and one more, more rows than a strip
    (1, 6, 5, 2, 3, (2, 3), 0.5),
    (16, 4, 4, 16, 16, (3, 3), 0.0),
    (2, 3, 3, 1, 2, (3, 3), 1.0),
]


def problem(n, height, width, channels, outputs, size, density):
    rng = np.random.default_rng(0)
    window = Window(size, (1, 1), (1, 1), (height, width))
    kernel = (*size, channels, outputs)
    arrays = (rng.normal(size=s) for s in ((n, height, width, channels), kernel, (n, *window.out, outputs)))
    x, weights, g = (jnp.asarray(a, jnp.float32) for a in arrays)
    mask = jnp.asarray(rng.random(kernel) < density)
    return x, jnp.where(mask, weights, 0), g, mask, window


def close(one, two):
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-5 * float(jnp.abs(two).max()) + 1e-30)


@needs_compiler
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_those_of_the_dense_convolution(shape):
    x, kernel, g, mask, window = problem(*shape)
    assert sparse_convolution.suits(window, x.dtype)
    close(sparse_convolution.conv(x, kernel, mask, window), convolution.conv_p.bind(x, kernel, window=window))
    dense = convolution.conv_to_images_p.bind(g, kernel, window=window)
    close(sparse_convolution.conv_to_images_p.bind(g, kernel, mask, window=window), dense)
    dense = jnp.where(mask, convolution.conv_to_kernel_p.bind(x, g, window=window), 0)
    close(sparse_convolution.conv_to_kernel_p.bind(x, g, mask, window=window), dense)


@needs_compiler
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_second_derivatives_are_those_of_the_dense_convolution(shape):
    x, kernel, g, mask, window = problem(*shape)

    def derivatives(conv):
        def first(x, kernel):
            return jax.vjp(lambda *both: jnp.sin(conv(*both)), x, kernel)[1](g)

        return jax.grad(lambda *both: sum(jnp.sum(jnp.cos(d)) for d in first(*both)), (0, 1))(x, kernel)

    ours = derivatives(lambda x, kernel: sparse_convolution.conv(x, kernel, mask, window))
    dense = derivatives(lambda x, kernel: convolution.conv_p.bind(x, jnp.where(mask, kernel, 0), window=window))
    for one, two in zip(ours, dense, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3 * float(jnp.abs(two).max()))


@needs_compiler
def test_vmap_of_any_argument():
    x, kernel, _, mask, window = problem(*SHAPES[0])
    conv = lambda *arrays: sparse_convolution.conv(*arrays, window)  # noqa: E731
    images, kernels, masks = jnp.stack([x, 2 * x]), jnp.stack([kernel, -kernel]), jnp.stack([mask, ~mask])
    for axes, arrays in [((0, None, None), (images, kernel, mask)), ((None, 0, 0), (x, kernels, masks))]:
        found = jax.vmap(conv, axes)(*arrays)
        for i in range(2):
            close(found[i], conv(*(a if axis is None else a[i] for axis, a in zip(axes, arrays, strict=True))))


@needs_compiler
def test_sums_are_the_same_each_time():
    # Threads take strips in any order.
    x, _, g, mask, window = problem(50, 40, 20, 8, 8, (3, 3), 0.3)
    made = [sparse_convolution.conv_to_kernel_p.bind(x, g, mask, window=window) for _ in range(10)]
    assert all(np.array_equal(made[0], other) for other in made)


def test_other_convolutions_stay_dense(monkeypatch):
    window = Window((3, 3), (1, 1), (1, 1), (8, 8))
    assert not sparse_convolution.suits(window, jnp.float64)
    assert not sparse_convolution.suits(Window((3, 3), (2, 2), (1, 1), (8, 8)), jnp.float32)
    assert not sparse_convolution.suits(Window((3, 3), (1, 1), (1, 1), (8, 8), groups=2), jnp.float32)
    assert not sparse_convolution.suits(Window((3,), (1,), (1,), (8,)), jnp.float32)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    anew = sparse_convolution._handlers_are_registered.__wrapped__
    monkeypatch.setattr(sparse_convolution, "_handlers_are_registered", anew)
    assert not sparse_convolution.suits(window, jnp.float32)
