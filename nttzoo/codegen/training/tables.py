"""The run-time tables of a mask: where the surviving weights of each layer read, forward and transposed.

One library serves every mask of an architecture: only these tables change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nttzoo.codegen.training.graph import Affine, Graph, Normalization


@dataclass(frozen=True)
class Tables:
    """`parameters`: the index of each trained parameter, in the order of the trained floats.

    Layer l: `lists[4l]` ... are rows and places of its weights, then those of its transposed weights. `starts`: where
    its weights and biases are among the trained floats; `back_from`: which of them each transposed weight copies.
    `density`: the fraction of the multiply-adds that survive.
    """

    parameters: np.ndarray
    lists: tuple[np.ndarray, ...]
    starts: np.ndarray
    back_starts: np.ndarray
    back_from: np.ndarray
    norm_starts: np.ndarray
    partial: int  # vectors for the sums of one layer's gradients
    density: float


@dataclass(frozen=True)
class _Weights:
    """Surviving weights, one entry each: its output, the element (or plane) that it reads, its place in the window."""

    parameter: np.ndarray
    output: np.ndarray
    source: np.ndarray
    dy: np.ndarray
    dx: np.ndarray


def make(graph: Graph, survivors: np.ndarray) -> Tables:
    """The tables for a mask: bool [parameters]."""
    parameters: list[np.ndarray] = []
    lists: list[np.ndarray] = []
    starts: list[int] = []
    back_starts: list[int] = []
    back_from: list[np.ndarray] = []
    norm_starts: list[int] = []
    partial, position, back, work, dense_work = 0, 0, 0, 0, 0
    for node in graph.nodes:
        if isinstance(node, Affine):
            weights = _survivors(node, survivors)
            places = _places(node, weights)
            order = np.lexsort((places, weights.output))
            weights = _Weights(*(getattr(weights, name)[order] for name in weights.__dataclass_fields__))
            lists += [_rows(weights.output, len(node.bias)), places[order].astype(np.int32)]
            group, back_places, count = _transposed(node, weights)
            order = np.lexsort((back_places, group))
            lists += [_rows(group[order], count), back_places[order].astype(np.int32)]
            back_from.append(position + order)
            back_starts.append(back)
            back += len(order)
            partial = max(partial, len(order) + len(node.bias))
            _, height, width = node.planes.planes
            work += height * width * len(order)
            dense_work += height * width * node.parameters.size
            bias = node.bias[node.bias >= 0]
            starts += [position, position + len(order)]
            parameters += [weights.parameter, bias]
            position += len(order) + len(bias)
        elif isinstance(node, Normalization):
            for trained in (node.scale, node.bias):
                norm_starts.append(position)
                if trained is not None:
                    parameters.append(trained)
                    position += len(trained)
    return Tables(
        np.concatenate([np.zeros(0, np.int64), *parameters]),
        tuple(lists),
        np.array(starts, np.int64),
        np.array(back_starts, np.int64),
        np.concatenate([np.zeros(0, np.int64), *back_from]).astype(np.int64),
        np.array(norm_starts, np.int64),
        partial,
        work / max(dense_work, 1),
    )


def _survivors(node: Affine, survivors: np.ndarray) -> _Weights:
    output, channel, i, j = np.nonzero(survivors[node.parameters])
    parameter = node.parameters[output, channel, i, j]
    if node.order is not None:
        return _Weights(parameter, output, node.order[channel], i, j)
    outputs, inputs = node.parameters.shape[:2]
    source = output // (outputs // node.groups) * inputs + channel
    return _Weights(parameter, output, source, i * node.dilations[0], j * node.dilations[1])


def _places(node: Affine, weights: _Weights) -> np.ndarray:
    """What each weight reads for the first output, from the start of the source's memory, borders included."""
    source = node.sources[0]
    if node.order is not None:
        return source.addresses().ravel()[weights.source]
    height, width = source.rows()
    top, left = source.pads[0] - node.pads[0], source.pads[1] - node.pads[1]
    return (weights.source * height + weights.dy + top) * width + weights.dx + left


def _transposed(node: Affine, weights: _Weights) -> tuple[np.ndarray, np.ndarray, int]:
    """(list of each weight, what it reads from the start of the planes' gradients, number of lists)."""
    planes = node.planes
    height, width = planes.rows(gradient=True)
    top, left = planes.gradient_pads[:2]
    if node.order is not None:
        return weights.source, weights.output * height * width, node.sources[0].size
    (sy, sx), channels = node.strides, node.sources[0].planes[0]
    fy, fx = weights.dy % sy, weights.dx % sx
    y, x = (fy - weights.dy) // sy + top, (fx - weights.dx) // sx + left
    group = (fy * sx + fx) * channels + weights.source
    return group, (weights.output * height + y) * width + x, sy * sx * channels


def _rows(sorted_ids: np.ndarray, count: int) -> np.ndarray:
    """The index of each id's first entry: [count + 1]."""
    return np.searchsorted(sorted_ids, np.arange(count + 1)).astype(np.int32)
