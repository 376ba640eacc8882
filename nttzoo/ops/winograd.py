"""Winograd's minimal filtering: a convolution with a window of 3x3 from 16 products for every 2x2 outputs.

Unfolding patches takes 36 products and writes every pixel nine times; here it is 16 and four. Tiles of 4x4 pixels, two
apart, are transformed, multiplied by the transformed kernel (one matrix product for each of a tile's 16 places) and
transformed back (Lavin and Gray, 2016). The transposes, with respect to the images and to the kernel, apply the
transposed steps in reverse order. All transforms are sums and differences of whole arrays, along whose channels XLA
runs at full speed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

# A tile's 4x4 places: an array over all tiles, [tiles, channels], or of the kernel, [c, o], for each.
Places = list[list[Array]]
Transform = Callable[[Sequence[Array]], list[Array]]

# XLA runs a product of long, thin matrices on one core; in this many pieces it uses several.
PIECES = 16
THIN = 64 * 64


def conv(x: Float[Array, "n h w c"], kernel: Float[Array, "3 3 c o"]) -> Float[Array, "n h-2 w-2 o"]:
    """The convolution, without padding."""
    n, height, width, _ = x.shape
    sums = _each(jnp.matmul, _image_places(x), _kernel_places(kernel))
    return _outputs(sums, n, height - 2, width - 2)


def conv_to_images(g: Float[Array, "n h w o"], kernel: Float[Array, "3 3 c o"]) -> Float[Array, "n h+2 w+2 c"]:
    """Its transpose with respect to the images."""
    n, height, width, _ = g.shape
    places = _each(lambda m, u: m @ u.T, _output_places(g), _kernel_places(kernel))
    return _images(places, n, height + 2, width + 2)


def conv_to_kernel(x: Float[Array, "n h w c"], g: Float[Array, "n h-2 w-2 o"]) -> Float[Array, "3 3 c o"]:
    """Its transpose with respect to the kernel."""
    places = _both_axes(_kernel_transpose, _each(_thin_product, _image_places(x), _output_places(g)))
    return jnp.stack([jnp.stack(row) for row in places])


def _each(product: Callable[[Array, Array], Array], one: Places, two: Places) -> Places:
    return [[product(a, b) for a, b in zip(*rows, strict=True)] for rows in zip(one, two, strict=True)]


def _thin_product(d: Float[Array, "tiles c"], m: Float[Array, "tiles o"]) -> Float[Array, "c o"]:
    pieces = PIECES if d.shape[1] * m.shape[1] <= THIN and len(d) % PIECES == 0 else 1
    d, m = (a.reshape(pieces, -1, a.shape[1]) for a in (d, m))
    # XLA multiplies this order of the axes faster than its transpose.
    return jnp.einsum("spo,spc->soc", m, d).sum(0).T


# Between images and places. What the first axis' transform gives is not recomputed for the second one's.


def _image_places(x: Float[Array, "n h w c"]) -> Places:
    """The transform of every tile."""
    return _places(_make_even(x), _input, 4)


def _output_places(g: Float[Array, "n h w o"]) -> Places:
    """The transpose of `_outputs`."""
    return _places(_make_even(g), _output_transpose, 2)


def _places(x: Array, transform: Transform, size: int) -> Places:
    """Tiles of size x size pixels, two apart, through a transform of both axes."""
    n, height, width, c = x.shape
    down, across = height - size + 1, width - size + 1  # to the last tile's first pixel, exclusive
    rows = [lax.slice(x, (0, i, 0, 0), (n, i + down, width, c), (1, 2, 1, 1)) for i in range(size)]
    found = []
    for row in lax.optimization_barrier(transform(rows)):
        shape = row.shape[:2]
        columns = [lax.slice(row, (0, 0, j, 0), (*shape, j + across, c), (1, 1, 2, 1)) for j in range(size)]
        found.append([place.reshape(-1, c) for place in transform(columns)])
    return found


def _outputs(places: Places, n: int, height: int, width: int) -> Float[Array, "n height width o"]:
    """Sums at the places of all tiles -> outputs."""
    phases = _both_axes(_output, [[_as_images(a, n, height, width) for a in row] for row in places])
    return _interleave(phases)[:, :height, :width]


def _images(places: Places, n: int, height: int, width: int) -> Float[Array, "n height width c"]:
    """The transpose of `_image_places`: tiles overlap by two pixels, where they are added."""
    tiles = _both_axes(_input_transpose, [[_as_images(a, n, height - 2, width - 2) for a in row] for row in places])

    def shifted(i: int, j: int) -> Array:
        around = [(0, 0, 0), (i // 2, 1 - i // 2, 0), (j // 2, 1 - j // 2, 0), (0, 0, 0)]
        return lax.pad(tiles[i][j], jnp.zeros((), tiles[i][j].dtype), around)

    phases = [[sum(shifted(a, b) for a in (i, i + 2) for b in (j, j + 2)) for j in range(2)] for i in range(2)]
    return _interleave(phases)[:, :height, :width]  # type: ignore[arg-type]


def _as_images(tiles: Float[Array, "tiles c"], n: int, height: int, width: int) -> Float[Array, "n rows columns c"]:
    """One pixel of each tile, for outputs of the given size."""
    return tiles.reshape(n, -(-height // 2), -(-width // 2), -1)


def _interleave(phases: Places) -> Float[Array, "n rows columns c"]:
    """2x2 arrays of every second pixel -> images."""
    n, rows, columns, c = phases[0][0].shape
    stacked = jnp.stack([jnp.stack(row, 3) for row in phases], 2)
    return stacked.reshape(n, 2 * rows, 2 * columns, c)


def _make_even(x: Float[Array, "n h w c"]) -> Float[Array, "n _ _ c"]:
    odd = [(0, 0, 0), (0, x.shape[1] % 2, 0), (0, x.shape[2] % 2, 0), (0, 0, 0)]
    return lax.pad(x, jnp.zeros((), x.dtype), odd)


def _kernel_places(kernel: Float[Array, "3 3 c o"]) -> Places:
    return _both_axes(_kernel, [[kernel[i, j] for j in range(3)] for i in range(3)])


# The transforms of one axis, and their transposes.


def _both_axes(transform: Transform, places: Places) -> Places:
    columns = [transform(column) for column in zip(*places, strict=True)]
    return [transform(row) for row in zip(*columns, strict=True)]


def _input(d: Sequence[Array]) -> list[Array]:
    return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]


def _input_transpose(d: Sequence[Array]) -> list[Array]:
    return [d[0], d[1] - d[2] + d[3], d[1] + d[2] - d[0], -d[3]]


def _output(m: Sequence[Array]) -> list[Array]:
    return [m[0] + m[1] + m[2], m[1] - m[2] - m[3]]


def _output_transpose(y: Sequence[Array]) -> list[Array]:
    return [y[0], y[0] + y[1], y[0] - y[1], -y[1]]


def _kernel(k: Sequence[Array]) -> list[Array]:
    return [k[0], (k[0] + k[1] + k[2]) / 2, (k[0] - k[1] + k[2]) / 2, k[2]]


def _kernel_transpose(u: Sequence[Array]) -> list[Array]:
    both, apart = (u[1] + u[2]) / 2, (u[1] - u[2]) / 2
    return [u[0] + both, apart, u[3] + both]
