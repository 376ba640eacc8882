"""One layer's share of a tangent kernel, from what the layer saw.

A layer is described by factors of its Jacobian: the inputs a of its calls and the cotangents b at their outputs. For an
affine layer (Linear, LinearGeneral, Conv) the Jacobian with respect to the kernel is the sum over positions p of
a[p] b[p]^T, and its Gram matrix is taken without ever forming the Jacobian of all parameters at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float

from nttzoo import nn
from nttzoo.nn import merge_params, split_params
from nttzoo.nn.taps import Call, kind_of
from nttzoo.ntk.sharding import Exchange
from nttzoo.ops import convolution, patches
from nttzoo.ops.patches import Window

_AFFINE = (nnx.Linear, nn.Linear, nnx.LinearGeneral, nn.LinearGeneral, nnx.Conv, nn.Conv)
_LOCAL = (nnx.LayerNorm, nnx.RMSNorm, nnx.GroupNorm, nnx.InstanceNorm, nnx.BatchNorm, nnx.Embed)
PARAMETERS = ("kernel", "bias", "scale", "embedding")  # that layers with a rule may have
_CONVOLUTIONS = (lax.conv_general_dilated, convolution.conv_general_dilated)


def has_rule(layer: Any) -> bool:
    """Whether a layer's share can be found from what it saw."""
    return kind_of(layer) in _AFFINE + _LOCAL


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Affine:
    """An affine layer: inputs a [n, p, g, k], cotangents b [n, r, g, c, p], mask [g, k, c] or None.

    n examples, r outputs of the network, p positions, g groups, k inputs and c outputs of one group. `bias` holds the
    rows of the Jacobian with respect to the layer's bias, if it has one: b summed over positions.
    """

    a: Float[Array, "n p g k"]
    b: Float[Array, "n r g c p"]
    mask: Bool[Array, "g k c"] | None
    bias: Float[Array, "n r g c"] | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rows:
    """Rows of a Jacobian as they are: [n, r, parameters]."""

    rows: Float[Array, "n r d"]


Share = Affine | Rows


def share_of(
    calls: list[Call], cotangents: list[Float[Array, "r n ..."]], *, active: bool, exchange: Exchange | None = None
) -> Share:
    """All calls of one layer together. `active`: only surviving weights count as parameters.

    With an `exchange`, the share holds all devices' examples and this device's part of the layer's outputs.
    """
    layer = calls[0].layer
    if _is_plainly_affine(layer):
        parts = [_affine(call, b, active, exchange) for call, b in zip(calls, cotangents, strict=True)]
        return Affine(
            jnp.concatenate([part.a for part in parts], 1),
            jnp.concatenate([part.b for part in parts], 4),
            parts[0].mask,
            None if layer.bias is None else sum(part.bias for part in parts),  # type: ignore[arg-type, misc]
        )
    rows: Any = sum(_local_rows(call, b, active) for call, b in zip(calls, cotangents, strict=True))
    return Rows(exchange.own_columns(rows, 2) if exchange else rows)


def _is_plainly_affine(layer: Any) -> bool:
    """Whether the layer's product is the ordinary one: a user may have put in, say, a quantized one."""
    kind = kind_of(layer)
    if issubclass(kind, nnx.Conv):
        return layer.conv_general_dilated in _CONVOLUTIONS and (nn.is_masked(layer) or layer.mask is None)
    if issubclass(kind, nnx.LinearGeneral):
        examples_stay = not layer.batch_axis and 0 not in layer.axis
        return examples_stay and layer.dot_general in (None, lax.dot_general) and layer.dot_general_cls is None
    return issubclass(kind, nnx.Linear) and layer.dot_general is lax.dot_general


def _affine(call: Call, b: Float[Array, "r n ..."], active: bool, exchange: Exchange | None) -> Affine:
    layer, (r, n) = call.layer, b.shape[:2]
    kind = kind_of(layer)
    # Inputs travel before they are unfolded to patches, which are larger.
    a = exchange.all_examples(call.inputs) if exchange else call.inputs
    if issubclass(kind, nnx.Conv):
        groups = layer.feature_group_count
        a = _patches(layer, a)  # [n, p, taps, channels]
        positions, taps, channels = a.shape[1:]
        if groups > 1:
            a = a.reshape(-1, positions, taps, groups, channels // groups).swapaxes(2, 3)
        a = a.reshape(-1, positions, groups, taps * channels // groups)
        outputs = layer.out_features
        kernel_shape = (taps * channels // groups, groups, outputs // groups)
    else:
        groups = 1
        if issubclass(kind, nnx.LinearGeneral):
            axes = [axis % a.ndim for axis in layer.axis]
            a = jnp.moveaxis(a, axes, range(a.ndim - len(axes), a.ndim))
            outputs = math.prod(layer.out_features)
        else:
            outputs = layer.out_features
        inputs = layer.kernel.size // outputs
        a = a.reshape(len(a), -1, 1, inputs)
        kernel_shape = (inputs, 1, outputs)
    # A layer may compute in half precision; Gram matrices, like gradients, have the precision of the parameters.
    b = b.astype(jnp.promote_types(layer.kernel[...].dtype, b.dtype))
    b = b.reshape(r, n, -1, groups, outputs // groups)
    # Summed before positions become the last axis: XLA would otherwise compute b in that order once more.
    bias = None if layer.bias is None else b.sum(2).swapaxes(0, 1)
    b = b.transpose(1, 0, 3, 4, 2)
    mask = layer.mask[...].reshape(kernel_shape).swapaxes(0, 1) if active and nn.is_masked(layer) else None
    if exchange:
        b = exchange.own_columns(b, 3)
        bias = None if bias is None else b.sum(4)
        mask = None if mask is None else exchange.own_part(mask, 2)
    return Affine(a.astype(b.dtype), b, mask, bias)


def _patches(layer: Any, inputs: Array) -> Float[Array, "n p taps c"]:
    """The patches that a Conv layer multiplies: the layer itself says how it pads, with a convolution that listens."""
    found: list[Array] = []

    def listen(
        lhs: Array, rhs: Array, strides: Any, padding: Any, lhs_dilation: Any, rhs_dilation: Any, **_: Any
    ) -> Array:
        size = rhs.shape[:-2]
        padded = patches.pad(lhs, size, strides, padding, lhs_dilation, rhs_dilation)
        unfolded = patches.unfold(padded, Window(size, tuple(strides), tuple(rhs_dilation), padded.shape[1:-1]))
        found.append(unfolded)
        return jnp.zeros((*unfolded.shape[:-2], rhs.shape[-1]), lhs.dtype)

    # Of the kernel only the shape matters here; the mask of nnx.Conv is left out with it.
    stand_in = SimpleNamespace(
        **{**vars(layer), "kernel": layer.kernel[...], "mask": None, "conv_general_dilated": listen}
    )
    nnx.Conv.__call__(stand_in, inputs)  # type: ignore[arg-type]
    return found[0].reshape(len(inputs), -1, *found[0].shape[-2:])


def _local_rows(call: Call, b: Float[Array, "r n ..."], active: bool) -> Float[Array, "n r d"]:
    """The layer's own Jacobian per example, contracted with the cotangents: right for any layer, but large."""
    layer = nnx.clone(call.layer)
    layer.__class__ = kind_of(layer)
    graph, params, rest = split_params(layer if active else at_masked_point(layer))

    def rows(a: Array, b: Array) -> Array:
        _, pull = jax.vjp(lambda p: merge_params(graph, p, rest)(a[None])[0], params)
        return jax.vmap(lambda row: _flat(pull(row)[0]))(b)

    return jax.vmap(rows, in_axes=(0, 1))(call.inputs, b)


def at_masked_point(model: Any) -> Any:
    """A copy with full masks and zeros for pruned weights: the same function, every weight of which is a parameter."""
    copy = nnx.clone(model)
    for _, layer in nnx.iter_modules(copy):
        if nn.is_masked(layer):
            layer.kernel[...] = layer.masked_kernel()  # type: ignore[attr-defined]
            layer.mask[...] = jnp.ones_like(layer.mask[...])  # type: ignore[attr-defined]
    return copy


def _flat(tree: Any) -> Array:
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(tree)])


def gram(one: Share, two: Share, *, trace: bool) -> Array:
    """The share of the kernel between two sets of examples: [n1, n2, r, r], or summed over outputs [n1, n2]."""
    if isinstance(one, Rows) or isinstance(two, Rows):
        return _gram_of_rows(one.rows, two.rows, trace)  # type: ignore[union-attr]
    n1, r, groups, outputs, positions1 = one.b.shape
    n2, positions2, inputs = len(two.a), two.a.shape[1], two.a.shape[3]
    if positions1 == positions2 == 1 and groups == 1:
        return _gram_of_single_position(one, two, trace)
    # Either form the Jacobian's rows and take their Gram matrix, or sum over pairs of positions: whichever costs less.
    by_rows = (n1 * positions1 + n2 * positions2) * r + n1 * n2 * (r if trace else r * r)
    pairs = n1 * n2 * positions1 * positions2
    by_pairs = pairs * (inputs + outputs * r * (1 if trace else r)) / (inputs * outputs)
    if one.mask is None and by_pairs < by_rows:
        share = _gram_by_pairs(one, two, trace)
    else:
        share = _gram_of_rows(_rows(one), _rows(two), trace)
    if one.bias is not None and two.bias is not None:
        share += _gram_of_rows(one.bias.reshape(n1, r, -1), two.bias.reshape(n2, r, -1), trace)
    return share


def as_rows(share: Share) -> Share:
    """The same share ready for many Gram matrices: rows, if it has positions to sum over; else as it was."""
    if isinstance(share, Rows) or share.b.shape[2] == share.b.shape[4] == 1:
        return share
    n, r = share.b.shape[:2]
    bias = [] if share.bias is None else [share.bias.reshape(n, r, -1)]
    return Rows(jnp.concatenate([_rows(share), *bias], 2))


def _gram_of_rows(one: Float[Array, "n1 r d"], two: Float[Array, "n2 r d"], trace: bool) -> Array:
    if trace:
        return _gram(one.reshape(len(one), -1), two.reshape(len(two), -1))
    product = _gram(one.reshape(-1, one.shape[-1]), two.reshape(-1, two.shape[-1]))
    return product.reshape(*one.shape[:2], *two.shape[:2]).transpose(0, 2, 1, 3)


@jax.custom_jvp
def _gram(one: Float[Array, "n d"], two: Float[Array, "m d"]) -> Float[Array, "n m"]:
    return one @ two.T


@_gram.defjvp
def _gram_tangent(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """The product rule, but with the factors of the second term swapped.

    Backwards, the small matrix is then transposed instead of being multiplied sideways, at half the speed, on the CPU.
    """
    (one, two), (d_one, d_two) = primals, tangents
    return _gram(one, two), _gram(d_one, two) + lax.optimization_barrier(_gram(d_two, one)).T


def _rows(share: Affine) -> Float[Array, "n r d"]:
    """The Jacobian with respect to the kernel, per example and output."""
    n, r, groups, outputs, positions = share.b.shape
    if groups == 1:
        # In this order of factors and axes the rows, which are the largest arrays here, need no transpose.
        rows = share.b.reshape(n, r * outputs, positions) @ share.a[:, :, 0]
        rows = rows.reshape(n, r, 1, outputs, -1)
    else:
        rows = jnp.einsum("nrgcp,npgk->nrgck", share.b, share.a)
    if share.mask is not None:
        rows = jnp.where(share.mask.swapaxes(1, 2)[None, None], rows, 0)
    return rows.reshape(n, r, -1)


def _gram_by_pairs(one: Affine, two: Affine, trace: bool) -> Array:
    inputs = jnp.einsum("npgk,mqgk->gnpmq", one.a, two.a)
    subscripts = "gnpmq,nrgcp,mrgcq->nm" if trace else "gnpmq,nrgcp,msgcq->nmrs"
    return jnp.einsum(subscripts, inputs, one.b, two.b)


def _gram_of_single_position(one: Affine, two: Affine, trace: bool) -> Array:
    """A linear layer without positions: (a a'^T + 1) * (b b'^T) entry by entry; no Jacobian at all."""
    a1, a2 = one.a[:, 0, 0], two.a[:, 0, 0]
    b1, b2 = one.b[:, :, 0, :, 0], two.b[:, :, 0, :, 0]
    bias = 0.0 if one.bias is None else 1.0
    if one.mask is None:
        inputs = a1 @ a2.T + bias
        if trace:
            return inputs * _gram_of_rows(b1, b2, trace)
        # Outputs before examples, the order in which the backward pass made the cotangents: no copies.
        b1, b2 = b1.swapaxes(0, 1), b2.swapaxes(0, 1)
        cotangents = b1.reshape(-1, b1.shape[-1]) @ b2.reshape(-1, b2.shape[-1]).T
        cotangents = cotangents.reshape(*b1.shape[:2], *b2.shape[:2])
        return (inputs[None, :, None] * cotangents).transpose(1, 3, 0, 2)
    inputs = (a2[:, None] * a1[None]) @ one.mask[0].astype(a1.dtype) + bias  # [m, n, c]
    if trace:
        return jnp.einsum("mnc,nmc->nm", inputs, jnp.einsum("nrc,mrc->nmc", b1, b2))

    # Example by example of the second set, the sum over c is a matrix product, and what it multiplies stays small.
    def column(pair: tuple[Array, Array]) -> Float[Array, "n r r"]:
        weighted = (pair[0][:, None] * b1).reshape(-1, b1.shape[2])
        return (weighted @ pair[1].T).reshape(*b1.shape[:2], -1)

    return lax.map(column, (inputs, b2)).swapaxes(0, 1)
