"""A model's shares: one forward and one vectorized backward pass give every layer's factors of the Jacobian."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Integer

from nttzoo.nn import Path, merge_params, path_name, split_params
from nttzoo.nn.taps import Call, call_shapes, record
from nttzoo.ntk.layer_rules import PARAMETERS, Rows, Share, at_masked_point, has_rule, share_of
from nttzoo.ntk.sharding import Exchange
from nttzoo.ops import convolution

# Which outputs of the network are looked at: all, the same ones for all examples, or each example's own.
Outputs = Integer[Array, " r"] | Integer[Array, "n r"] | None

_warned: set[tuple[str, tuple[str, ...]]] = set()


def shares(
    model: nnx.Module,
    x: Float[Array, "n ..."],
    outputs: Outputs,
    *,
    active: bool,
    exchange: Exchange | None = None,
) -> tuple[Float[Array, "n o"], dict[Path, Share]]:
    """The model's outputs [n, o] and, per layer, the factors of d outputs[r] / d parameters for the chosen outputs.

    With an `exchange`, x is one device's part of the examples, and so are the outputs; the shares are of all examples.
    """
    tapped, uncovered = _coverage(model, x)
    shapes = [call.outputs for call in call_shapes(model, has_rule, x)]
    zeros: dict[int, Array] = {i: jnp.zeros(s.shape, s.dtype) for i, s in enumerate(shapes) if i in tapped}

    def forward(perturbations: dict[int, Array]) -> tuple[Array, list[Call]]:
        def add(i: int, call: Call) -> Array:
            return call.outputs + perturbations[i] if i in perturbations else call.outputs

        return record(model, has_rule, lambda m: m(x), add)

    seen: list[Call] = []

    def with_inputs(perturbations: dict[int, Array]) -> tuple[Array, list[Array]]:
        y, calls = forward(perturbations)
        seen.extend(calls)
        return y, [call.inputs for call in calls]

    with convolution.unfolding():
        y, pull, inputs = jax.vjp(with_inputs, zeros, has_aux=True)
    chosen = _one_hot(outputs, y)
    # One backward pass per output, each for all examples at once: no example's output depends on another example.
    cotangents = jax.vmap(lambda row: pull(row)[0])(chosen)

    grouped: dict[Path, tuple[list[Call], list[Array]]] = {}
    for i in sorted(tapped):
        calls, bs = grouped.setdefault(seen[i].path, ([], []))
        calls.append(Call(seen[i].path, _layer_at(model, seen[i].path), inputs[i], cotangents[i]))
        bs.append(cotangents[i])
    found = {path: share_of(calls, bs, active=active, exchange=exchange) for path, (calls, bs) in grouped.items()}
    if uncovered:
        _warn_of_slow_parameters(model, uncovered)
        rows = _jacobian_rows(model, x, chosen, uncovered, active).rows
        found[("(parameters without a rule)",)] = Rows(exchange.own_columns(rows, 2) if exchange else rows)
    return y, found


def _one_hot(outputs: Outputs, y: Float[Array, "n o"]) -> Float[Array, "r n o"]:
    """Ones at the chosen outputs of every example."""
    rows = jnp.eye(y.shape[1], dtype=y.dtype)
    if outputs is not None:
        rows = rows[outputs]
    return rows.swapaxes(0, 1) if rows.ndim == 3 else jnp.broadcast_to(rows[:, None], (len(rows), *y.shape))


def _layer_at(model: Any, path: Path) -> Any:
    for key in path:
        model = getattr(model, key) if isinstance(key, str) and hasattr(model, key) else model[key]
    return model


def _coverage(model: nnx.Module, x: Array) -> tuple[set[int], frozenset[Path]]:
    """Which calls can be tapped, and which parameters then still need their Jacobian.

    A call is tapped if its inputs, its only argument, and its outputs have the examples in front. A parameter is
    covered if it acts on the outputs through tapped calls only: with the outputs of those replaced by free variables,
    it must have no influence. And what a tapped layer uses must be its own parameters as they are: not another layer's,
    not a frozen variable, not something computed from others in the forward pass.
    """
    larger = jax.ShapeDtypeStruct((len(x) + 1, *x.shape[1:]), x.dtype)
    here, there = (call_shapes(model, has_rule, shape) for shape in (jax.ShapeDtypeStruct(x.shape, x.dtype), larger))
    grows = [
        a.plain
        and a.inputs.shape[:1] == a.outputs.shape[:1] == (len(x),)
        and b.inputs.shape[:1] == b.outputs.shape[:1] == (len(x) + 1,)
        for a, b in zip(here, there, strict=True)
    ]
    tapped = {i for i, ok in enumerate(grows) if ok}
    free = {i: jax.ShapeDtypeStruct(here[i].outputs.shape, here[i].outputs.dtype) for i in tapped}
    graph, params, rest = split_params(model)

    used: list[Path] = []  # the parameters that tapped layers use, by their places in the model

    def cut(params: Any, free: dict[int, Array]) -> tuple[Array, list[Array], list[Array]]:
        whole = merge_params(graph, params, rest)
        values: list[Array] = []

        def hook(i: int, call: Call) -> Array:
            if i not in free:
                return call.outputs
            held = {name: getattr(call.layer, name, None) for name in PARAMETERS}
            used.extend((*call.path, name) for name, value in held.items() if value is not None)
            values.extend(value[...] for value in held.values() if value is not None)
            return free[i]

        y, calls = record(whole, has_rule, lambda m: m(jnp.zeros(x.shape, x.dtype)), hook)
        return y, [call.inputs for i, call in enumerate(calls) if i in tapped], values

    jaxpr = jax.make_jaxpr(cut)(params, free).jaxpr
    paths = [path for path, _ in nnx.to_flat_state(params)]
    origins = _origins(jaxpr, len(paths))
    split = len(jaxpr.outvars) - len(used)
    own = dict(zip(paths, jaxpr.invars, strict=False))
    # A layer that is called twice may use something else each time.
    changed = [(path, var) for path, var in zip(used, jaxpr.outvars[split:], strict=True) if own.get(path) is not var]
    results = [var for var in (*jaxpr.outvars[:split], *(var for _, var in changed)) if not hasattr(var, "val")]
    influential = {paths[i] for var in results for i in origins.get(var, ())}
    # A layer is taken whole or not at all, lest a parameter that also acts elsewhere be counted twice.
    spoiled = {call.path for call in here if any(path[: len(call.path)] == call.path for path in influential)}
    spoiled |= {path[:-1] for path, _ in changed}
    uncovered = {path for path in paths if path in influential or any(path[: len(s)] == s for s in spoiled)}
    return {i for i in tapped if here[i].path not in spoiled}, frozenset(uncovered)


def _origins(jaxpr: Any, count: int) -> dict[Any, set[int]]:
    """Which of the first `count` arguments of a jaxpr can have an influence on each of its variables."""
    origins: dict[Any, set[int]] = {var: {i} for i, var in enumerate(jaxpr.invars[:count])}
    for equation in jaxpr.eqns:
        found: set[int] = set().union(*(origins.get(v, set()) for v in equation.invars if not hasattr(v, "val")))
        for var in equation.outvars:
            origins[var] = found
    return origins


def _warn_of_slow_parameters(model: nnx.Module, uncovered: frozenset[Path]) -> None:
    names = tuple(sorted(path_name(path) for path in uncovered))
    key = (type(model).__name__, names)
    if key not in _warned:
        _warned.add(key)
        warnings.warn(
            f"no fast tangent rule for these parameters of {key[0]}: {', '.join(names)}. Their exact Jacobian is used: "
            "correct, but slower and hungrier for memory.",
            stacklevel=2,
        )


def _jacobian_rows(
    model: nnx.Module, x: Array, chosen: Float[Array, "r n o"], which: frozenset[Path] | None, active: bool
) -> Rows:
    """Rows of the Jacobian with respect to some parameters (None: all), example by example."""
    point = model if active else at_masked_point(model)
    graph, params, rest = split_params(point)
    flat = dict(nnx.to_flat_state(params))
    moving = {path: value for path, value in flat.items() if which is None or path in which}

    def one_example(example: Array, chosen: Float[Array, "r o"]) -> Array:
        def outputs(moving: dict[Path, Any]) -> Array:
            merged = nnx.from_flat_state(list({**flat, **moving}.items()))
            return merge_params(graph, merged, rest)(example[None])[0]

        _, pull = jax.vjp(outputs, moving)
        rows = jax.vmap(lambda row: pull(row)[0])(chosen)
        return jnp.concatenate([leaf.reshape(len(chosen), -1) for leaf in jax.tree.leaves(rows)], 1)

    return Rows(jax.vmap(one_example, in_axes=(0, 1))(x, chosen))


def dense_rows(model: nnx.Module, x: Array, outputs: Outputs, *, active: bool) -> tuple[Array, dict[Path, Share]]:
    """`shares` by the whole Jacobian: the slow and simple reference, with the same signature."""
    y = nnx.clone(model)(x)
    return y, {("(all parameters)",): _jacobian_rows(model, x, _one_hot(outputs, y), None, active)}
