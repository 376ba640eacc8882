"""One parameter's contribution to a tangent kernel, from the products that use it.

A share is described by factors of the Jacobian: the inputs a of the products and the cotangents b at their results. The
Jacobian with respect to the weights is the sum over positions p of a[p] b[p]^T, and its Gram matrix is taken without
ever forming the Jacobian of all parameters at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from nttzoo.dataflow import Seen, Site
from nttzoo.ntk.sharding import Exchange


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Affine:
    """The weights of products: inputs a [n, p, g, k], cotangents b [n, r, g, c, p], mask [g, k, c] or None.

    n examples, r outputs of the network, p positions, g groups, k inputs and c outputs of one group. `bias` holds the
    rows of the Jacobian with respect to the products' bias, if they have one: b summed over positions.
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


def affine_share(
    sites: list[Site],
    seen: list[Seen],
    cotangents: list[Float[Array, "r n ..."]],
    *,
    dtype: Any,
    exchange: Exchange | None = None,
) -> Affine:
    """All products of one parameter together: each adds its positions.

    With an `exchange`, the share holds all devices' examples and this device's part of the layer's outputs.
    """
    parts = [
        _factors(site, saw.inputs, b, dtype, exchange) for site, saw, b in zip(sites, seen, cotangents, strict=True)
    ]
    a, b = parts[0] if len(parts) == 1 else (jnp.concatenate([a for a, _ in parts], 1), _joined([b for _, b in parts]))
    # Summed before positions become the last axis: XLA would otherwise compute b in that order once more.
    bias = None if sites[0].bias is None else b.sum(2).swapaxes(0, 1)
    b = b.transpose(1, 0, 3, 4, 2)
    mask = None if seen[0].passes is None else sites[0].weights(seen[0].passes)
    if exchange:
        b = exchange.own_columns(b, 3)
        bias = None if bias is None else b.sum(4)
        mask = None if mask is None else exchange.own_part(mask, 2)
    return Affine(a, b, mask, bias)


def _joined(cotangents: list[Array]) -> Array:
    return jnp.concatenate(cotangents, 2)


def _factors(
    site: Site, inputs: Array, cotangents: Array, dtype: Any, exchange: Exchange | None
) -> tuple[Float[Array, "n p g k"], Float[Array, "r n p g c"]]:
    """One product's inputs and cotangents."""
    # Inputs are exchanged before they are unfolded to patches, which are larger.
    inputs = exchange.all_examples(inputs) if exchange else inputs
    a, b = site.inputs(inputs, 1), site.outputs(cotangents, 2)
    # A layer may compute in half precision; Gram matrices, like gradients, have the precision of the parameters.
    dtype = jnp.promote_types(dtype, b.dtype)
    return a.astype(dtype), b.astype(dtype)


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

    The backward pass then transposes the small matrix; a product with the untransposed one runs at half the speed on
    CPUs.
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
