"""How a model uses its masked kernels: in which products, how often, and which of their weights can matter."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float

from nttzoo.dataflow import Position, Program, Site, trace
from nttzoo.errors import ModelError, ShapeError
from nttzoo.nn import LayerPath, Mask, masked_layers, path_name

PROBES = 8
NORM_BIAS = 4.0  # in standard deviations: few units are off behind a norm
# Several products of one kernel that arrange it differently are no trouble here.
_COUNTABLE = {"several layouts"}


def positions_of(model: nnx.Module, example: jax.ShapeDtypeStruct) -> dict[LayerPath, int]:
    """How many times an example (a batch of one) uses each weight of each masked layer: {path: positions}.

    Each weight takes part once per output position, in every call of its layer and in every step of a loop.
    """
    program = _program(_evaluated(model), jax.ShapeDtypeStruct(example.shape[1:], example.dtype))
    _check_masks_hold(model, example.shape[1:])
    positions = dict.fromkeys(masked_layers(model), 0)
    for site in program.analysis.products.values():
        positions[program.names[site.parameter][:-1]] += _positions(site)
    return positions


def weights_on_paths(model: nnx.Module, shape: tuple[int, ...]) -> dict[LayerPath, Bool[np.ndarray, "..."]]:
    """Which surviving weights lie on a path from the input to an output."""
    places = places_on_paths(model, shape)
    return {path: np.asarray(places[path] & layer.mask[...]) for path, layer in masked_layers(model).items()}


def places_on_paths(model: nnx.Module, shape: tuple[int, ...]) -> dict[LayerPath, Bool[Array, "..."]]:
    """At which places a weight, pruned or not, would lie on a path from the input to an output. Works under jit.

    Surviving weights have to lead from the input to the one end of the place, and from its other end to an output. The
    model is probed with positive surviving weights, biases and images, where nothing can cancel: a derivative is zero
    only where there is no path. (Through linear, conv, pooling and monotone activations this is exact; through norms
    and attention it is a matter of chance, hence several random probes.)
    """
    probe = _evaluated(model)
    rng = np.random.default_rng(0)
    for layer in masked_layers(probe).values():
        # Scaled to keep activations near one, so that no path under- or overflows.
        share = jnp.maximum(layer.mask[...].sum() / math.prod(layer.output_units()), 1)
        layer.kernel[...] = (jnp.asarray(rng.uniform(0.5, 1.5, layer.kernel.shape)) / share).astype(layer.kernel.dtype)
        if layer.bias is not None:
            # A product of two branches lives on where one of them is constant, but not zero.
            layer.bias[...] = jnp.asarray(rng.uniform(0.005, 0.015, layer.bias.shape), layer.bias.dtype)
    for _, norm in nnx.iter_modules(probe):
        if isinstance(getattr(norm, "scale", None), nnx.Param) and isinstance(getattr(norm, "bias", None), nnx.Param):
            norm.bias[...] = jnp.full_like(norm.bias[...], NORM_BIAS)  # type: ignore[attr-defined]
    images = jnp.asarray(rng.uniform(0.5, 1.5, (PROBES, *shape)), jnp.float32)
    program = _program(probe, images[0])
    parts: Any = nnx.split(probe, Mask, ...)
    met = jax.jit(partial(_met, program))(jax.tree.leaves(parts[1]), jax.tree.leaves(parts[2]), images)
    found = {path: jnp.zeros(layer.mask.size, bool) for path, layer in masked_layers(model).items()}
    for at, there in met.items():
        site = program.analysis.products[at]
        path = program.names[site.parameter][:-1]
        found[path] = found[path].at[site.places().ravel()].max(there.ravel())
    return {path: found[path].reshape(layer.mask.shape) for path, layer in masked_layers(model).items()}


def _check_masks_hold(model: nnx.Module, shape: tuple[int, ...]) -> None:
    """Raises if a kernel acts past its mask: with an empty mask, its values must not matter."""
    probe, rng = _evaluated(model), np.random.default_rng(0)
    graph, _ = nnx.split(probe)
    images = jnp.asarray(rng.uniform(0.5, 1.5, (2, *shape)), jnp.float32)
    run = jax.jit(lambda state: nnx.merge(graph, state, copy=True)(images))
    layers = masked_layers(probe)
    for layer in layers.values():  # so that something leaves a layer whose mask is empty
        if layer.bias is not None:
            layer.bias[...] = jnp.asarray(rng.uniform(0.5, 1.5, layer.bias.shape), layer.bias.dtype)
    for path, layer in layers.items():
        kernel = layer.kernel[...]
        alike = [(other, other.mask[...]) for other in layers.values() if other.kernel is layer.kernel]
        for other, mask in alike:
            other.mask[...] = jnp.zeros_like(mask)
        before = run(nnx.state(probe))
        layer.kernel[...] = kernel + jnp.asarray(rng.normal(size=kernel.shape), kernel.dtype)
        after = run(nnx.state(probe))
        layer.kernel[...] = kernel
        for other, mask in alike:
            other.mask[...] = mask
        if not np.array_equal(before, after, equal_nan=True):
            raise ModelError(
                f"cannot count the multiply-adds of '{path_name(path)}' in {type(model).__name__}: its kernel is used "
                "without its mask. Use layer.masked_kernel()."
            )


def _evaluated(model: nnx.Module) -> Any:
    frozen = nnx.clone(model)
    frozen.eval()
    return frozen


def _program(model: nnx.Module, example: Any) -> Program:
    """The model's program, with its masks for parameters; raises if a mask acts on other than weights of products."""
    try:
        program = trace(model, example, of=Mask)
    except (TypeError, ValueError) as error:
        raise ShapeError(
            f"{type(model).__name__} does not take an image of shape {tuple(example.shape)}: {error}"
        ) from error
    for i, why in program.analysis.loose.items():
        if why - _COUNTABLE:
            raise ModelError(
                f"cannot count the multiply-adds of '{path_name(program.names[i][:-1])}' in {type(model).__name__}: "
                f"its kernel takes part in {', '.join(sorted(why - _COUNTABLE))}, not only in products."
            )
    return program


def _positions(site: Site) -> int:
    """How often each weight of a product is used."""
    steps = math.prod(length for length, sliced in zip(site.lengths, site.sliced, strict=True) if not sliced)
    outputs: Any = site.product.outputs(np.empty(site.results, np.int8), 0)  # type: ignore[arg-type]
    return steps * len(outputs)


def _met(
    program: Program, masks: list[Array], others: list[Any], images: Float[Array, "n ..."]
) -> dict[Position, Bool[Array, "g k c"]]:
    """For each product: which of its weights a derivative from the images reaches and one of the outputs."""
    sites = program.analysis.products
    zeros = {at: jnp.zeros((*site.lengths, *site.results), site.dtype) for at, site in sites.items()}

    def one(image: Array) -> tuple[dict[Position, Array], dict[Position, Array]]:
        def run(image: Array, products: dict[Position, Array]) -> tuple[Array, dict[Position, Array]]:
            outputs, seen = program.run(masks, others, image, products, {}, straight=False)
            total: Any = sum(output.sum() for output in outputs)
            return total, {at: saw.inputs for at, saw in seen.items()}

        moving = jax.jvp(lambda image: run(image, zeros)[1], (image,), (image,))[1]
        return moving, jax.grad(lambda products: run(image, products)[0])(zeros)

    moving, wanted = jax.vmap(one)(images)
    met = {}
    for at, site in sites.items():
        a, b = ((array != 0).astype(jnp.float32) for array in (moving[at], wanted[at]))
        a, b = site.inputs(a, 1), site.outputs(b, 1)
        met[at] = jnp.einsum("npgk,npgc->gkc", a, b) > 0
    return met
