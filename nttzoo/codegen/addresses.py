"""Arithmetic of addresses: planes in memory, how many rows of them to compute at a time, and runs."""

from __future__ import annotations

import numpy as np

from nttzoo.codegen.ir import (
    Pair,
    Pool,
)
from nttzoo.codegen.plan import (
    Pooling,
)

TILE_FROM_BYTES = 128 * 1024
TILE_FROM_WORK = 16
TILE = 50  # floats; with the rest of a row, about four of the widest vectors


def tile_rows(size: Pair, row: int, input_floats: int, work: float, pooling: Pooling | None) -> int:
    """How many rows of all output planes to compute at a time.

    All, unless the input is far larger than the L1 cache and each float is read often (`work`: weights of an output
    plane): Conv-4's second layer gains a quarter at 5 %, but loses as much at 1 %.
    """
    height, width = size
    pooled = pooling is not None
    if 4 * input_floats < TILE_FROM_BYTES or work < TILE_FROM_WORK or (pooling is not None and not pooling.is_2x2):
        return height
    rows = 2 if pooled else 1
    while rows < height and (rows - 1) * row + width < TILE:
        rows += 2 if pooled else 1
    return min(rows, height)


def pooling_of(op: Pool, size: Pair, row: int, out: tuple[int, ...]) -> Pooling:
    """The pooling of planes of this size and row length."""
    pads = (op.pads[0], op.pads[1])
    return Pooling(op.kind, size, row, (out[0], out[1]), op.window, op.strides, pads, op.count_pads)


def plane_addresses(channels: int, kept: np.ndarray, stride: int, row: int, size: Pair) -> np.ndarray:
    """Addresses [c, h, w] of contiguous planes, of which only some are kept."""
    address = np.full((channels, *size), -1)
    plane = np.arange(size[0])[:, None] * row + np.arange(size[1])
    address[kept] = np.arange(len(kept))[:, None, None] * stride + plane
    return address


def row_length(address: np.ndarray) -> int | None:
    """The distance between rows in all kept planes if their columns are contiguous; otherwise None."""
    planes = address[(address >= 0).all((1, 2))]
    if not len(planes) or (address >= 0).any((1, 2)).sum() != len(planes):
        return None
    _, height, width = planes.shape
    row = int(planes[0, 1, 0] - planes[0, 0, 0]) if height > 1 else width
    expected = planes[:, :1, :1] + np.arange(height)[:, None] * row + np.arange(width)
    return row if row >= width and np.array_equal(planes, expected) else None


def find_runs(addresses: list[np.ndarray]) -> np.ndarray:
    """Splits parallel lists of addresses into runs in which each has a constant step: [(start, step) ..., length]."""
    stacked = np.stack(addresses)
    count = stacked.shape[1]
    steps = np.diff(stacked, axis=1)
    changes = np.flatnonzero((steps[:, 1:] != steps[:, :-1]).any(0)) + 1
    runs = []
    begin = 0
    while begin < count:
        later = np.searchsorted(changes, begin, side="right")
        end = int(changes[later]) + 1 if later < len(changes) else count
        step = steps[:, begin] if end - begin > 1 else np.ones(len(stacked), int)
        runs.append([*np.stack([stacked[:, begin], step], 1).ravel(), end - begin])
        begin = end
    return np.array(runs, int).reshape(len(runs), 2 * len(stacked) + 1)
