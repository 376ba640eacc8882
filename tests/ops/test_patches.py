import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax import lax

from nttzoo.ops.patches import Window, fold, unfold


@st.composite
def windows(draw):
    space = draw(st.integers(1, 3))
    size, strides, holes = (tuple(draw(st.integers(1, high)) for _ in range(space)) for high in (3, 3, 2))
    reach = [(w - 1) * hole + 1 for w, hole in zip(size, holes, strict=True)]
    return Window(size, strides, holes, tuple(draw(st.integers(r, r + 3)) for r in reach))


def example(shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def patches_by_lax(x, window):
    """[n, *out, k, c] by a convolution with ones: an oracle that is not ours. lax numbers channels before pixels."""
    space = len(window.size)
    axes = "DHW"[-space:]
    layout = (f"N{axes}C", f"{axes}IO", f"N{axes}C")
    found = lax.conv_general_dilated_patches(
        x, window.size, window.strides, "VALID", rhs_dilation=window.holes, dimension_numbers=layout
    )
    return jnp.swapaxes(found.reshape(*found.shape[:-1], x.shape[-1], -1), -1, -2)


@settings(max_examples=10, phases=[Phase.generate])
@given(windows(), st.integers(1, 3), st.integers(1, 3))
def test_patches_are_those_of_lax(window, n, channels):
    x = example((n, *window.space, channels))
    np.testing.assert_array_equal(unfold(x, window), patches_by_lax(x, window))


@settings(max_examples=10, phases=[Phase.generate])
@given(windows(), st.integers(1, 5), st.integers(1, 3))
def test_folding_is_the_transpose_of_unfolding(window, n, channels):
    x = example((n, *window.space, channels))
    patches, pull = jax.vjp(lambda x: patches_by_lax(x, window), x)
    cotangents = example(patches.shape, seed=1)
    np.testing.assert_allclose(fold(cotangents, window), pull(cotangents)[0], rtol=1e-5, atol=1e-6)


WINDOW = Window((2, 3), (1, 2), (2, 1), (5, 6))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_both_are_linear_at_every_order(transform):
    x, weights = example((3, *WINDOW.space, 2)), example((3, *WINDOW.out, 6, 2), seed=1)

    def gradient(unfold):
        return jax.grad(lambda x: jnp.sum(weights * unfold(x, WINDOW) ** 3))

    def bend(unfold):  # forward over reverse over reverse
        slope = jax.grad(lambda x: jnp.sum(jnp.sin(gradient(unfold)(x))))
        return transform(lambda x: jax.jvp(slope, (x,), (x,)))(x)

    for ours, theirs in zip(bend(unfold), bend(patches_by_lax), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("axis", [0, 2])
def test_vmap_over_any_axis(axis):
    x = example((2, 3, *WINDOW.space, 2))
    moved = jnp.moveaxis(x, 0, axis)
    patches = jax.vmap(lambda x: unfold(x, WINDOW), in_axes=axis)(moved)
    np.testing.assert_array_equal(patches, jnp.stack([unfold(each, WINDOW) for each in x]))
    back = jax.vmap(lambda p: fold(p, WINDOW), in_axes=axis)(jnp.moveaxis(patches, 0, axis))
    np.testing.assert_allclose(back, jnp.stack([fold(each, WINDOW) for each in patches]), rtol=1e-6)
