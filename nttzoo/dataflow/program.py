"""A model's forward pass as a program for one example, and how to run it with perturbations.

A program traced for one example cannot mix examples, whatever the model does with a batch. It consists of what the
model computes, so the types of its layers make no difference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, jaxprs_in_params
from jaxtyping import Array, Shaped

from nttzoo.dataflow.analysis import Analysis, Loop, called_program
from nttzoo.dataflow.sites import Position, Site
from nttzoo.nn.layers import LayerPath, mask_p, merge_params, split_params
from nttzoo.ops import convolution, sparse_convolution


@dataclass(frozen=True)
class Program:
    """The forward pass for one example: jaxpr(*parameters, *other variables, example) -> its outputs."""

    closed: ClosedJaxpr
    names: list[LayerPath]
    analysis: Analysis

    @property
    def jaxpr(self) -> Any:
        """The equations."""
        return self.closed.jaxpr

    @property
    def sites(self) -> dict[Position, Site]:
        """The products whose weights are parameters that act in no other way."""
        return self.analysis.sites

    @cached_property
    def loose(self) -> list[int]:
        """The parameters that act in any other way."""
        return sorted(self.analysis.loose)

    @cached_property
    def rank(self) -> int:
        """The largest number of axes of an array in the program."""

        def largest(jaxpr: Any) -> int:
            own = [getattr(variable.aval, "ndim", 0) for equation in jaxpr.eqns for variable in equation.outvars]
            inner = [largest(called) for equation in jaxpr.eqns for called in jaxprs_in_params(equation.params)]
            return max([0, *own, *inner])

        return largest(self.jaxpr)

    @property
    def outputs(self) -> Any:
        """The shape and type of the only output."""
        (output,) = self.jaxpr.outvars
        return output.aval

    def run(
        self,
        parameters: list[Array],
        others: list[Any],
        example: Shaped[Array, "..."],
        products: dict[Position, Array],
        moves: dict[int, Array],
        *,
        straight: bool,
        sparse: bool = False,
    ) -> tuple[list[Array], dict[Position, Seen]]:
        """The outputs, with `products` added to the sites' results and `moves` to parameters; and the sites' inputs.

        With `straight`, moves bypass masks: only the parameters' own values are masked. With `sparse`, products skip
        masked weights where they can: faster, if few weights are left.
        """
        arguments = [Entries(value, move=moves.get(i)) for i, value in enumerate(parameters)]
        run = _Run(self.analysis.products, products, {}, straight, sparse)
        outputs = run.evaluate(self.jaxpr, self.closed.consts, [*arguments, *others, example], ())
        return [_plain(output) for output in outputs], run.seen


def trace(model: nnx.Module, example: Any, of: type[nnx.Variable] = nnx.Param) -> Program:
    """The program of a model for one example, with variables of one type as its parameters."""
    parts: Any = nnx.split(model, of, ...)
    graph, params, rest = parts
    flat, tree = jax.tree_util.tree_flatten_with_path(params)
    parameters = [leaf for _, leaf in flat]
    others, structure = jax.tree.flatten(rest)

    def forward(parameters: list[Array], others: list[Any], example: Array) -> Any:
        merged = merge_params(graph, jax.tree.unflatten(tree, parameters), jax.tree.unflatten(structure, others))
        return outputs_alone(merged, example, copies)

    copies = smallest_batch(model, example)
    with convolution.unfolding():
        closed = jax.make_jaxpr(forward)(parameters, others, example)
    analysis = Analysis()
    analysis.run(closed.jaxpr, len(closed.consts), len(parameters))
    return Program(closed, [_name(path) for path, _ in flat], analysis)


def outputs_alone(model: Any, example: Shaped[Array, "..."], copies: int) -> Any:
    """The model's outputs for an example in a batch of copies of itself."""
    return jax.tree.map(lambda output: output[0], model(jnp.stack([example] * copies)))


def smallest_batch(model: nnx.Module, example: Any) -> int:
    """1, if the model takes a batch of one; else 2: a model may `squeeze` all axes of size one away."""
    graph, params, rest = split_params(model)

    def shapes(size: int) -> list[Any]:
        def outputs(params: Any, rest: Any, example: Array) -> Any:
            return merge_params(graph, params, rest)(jnp.stack([example] * size))

        return [output.shape for output in jax.tree.leaves(jax.eval_shape(outputs, params, rest, example))]

    two = shapes(2)
    try:
        return 1 if shapes(1) == [(1, *shape[1:]) for shape in two] else 2
    except (TypeError, ValueError, IndexError):
        return 2


def _name(path: Any) -> LayerPath:
    keys = [getattr(key, "key", getattr(key, "idx", getattr(key, "name", None))) for key in path]
    return tuple(keys[:-1] if keys[-1] == "value" else keys)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Entries:
    """A parameter on its way to a site: its values, which of them no mask removes (None: all), and its move.

    `kept`: the values that a layer's mask keeps (None: unknown); the others are zero. With straight moves, such a mask
    removes no derivative: it is in `kept`, but not in `passes`.
    """

    value: Array
    passes: Array | None = None
    move: Array | None = None
    kept: Array | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Seen:
    """The inputs of a product [*lengths, ...], and which of its weights [*slices, ...] no mask removes."""

    inputs: Array
    passes: Array | None


def _plain(value: Any) -> Any:
    if isinstance(value, Entries):
        return value.value if value.move is None else value.value + value.move
    return value


@dataclass
class _Run:
    sites: dict[Position, Site]
    products: dict[Position, Array]
    seen: dict[Position, Seen]
    straight: bool
    sparse: bool

    def evaluate(self, jaxpr: Any, consts: Any, args: list[Any], at: Position) -> list[Any]:
        values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))
        for i, equation in enumerate(jaxpr.eqns):
            operands = [atom.val if isinstance(atom, Literal) else values[atom] for atom in equation.invars]
            results = self._equation(equation, operands, (*at, i))
            values |= zip(equation.outvars, results, strict=True)
        return [atom.val if isinstance(atom, Literal) else values[atom] for atom in jaxpr.outvars]

    def _equation(self, equation: Any, operands: list[Any], here: Position) -> list[Any]:
        places = [i for i, value in enumerate(operands) if isinstance(value, Entries)]
        if places:
            if called := called_program(equation):
                return self.evaluate(*called, operands, here)
            if equation.primitive.name == "scan":
                return self._scan(equation, operands, here)
            if equation.primitive.name == "cond" and places[0] > 0:
                return self._cond(equation, operands, here)
            if len(places) == 1 and (moved := self._moved(equation, operands, places[0])):
                return [moved]
        if here in self.products:
            return [self._product(equation, operands, places[0], here) + self.products[here]]
        return _bind(equation, [_plain(value) for value in operands])

    def _product(self, equation: Any, operands: list[Any], place: int, here: Position) -> Array:
        """The result at a site, whose inputs are recorded."""
        inputs, entries = _plain(operands[1 - place]), operands[place]
        self.seen[here] = Seen(inputs, entries.passes)
        if self.sparse and entries.kept is not None and equation.primitive is convolution.conv_p:
            window = equation.params["window"]
            if entries.move is None and sparse_convolution.suits(window, inputs.dtype):
                return sparse_convolution.conv(inputs, entries.value, entries.kept, window)
        return _bind(equation, [_plain(value) for value in operands])[0]

    def _moved(self, equation: Any, operands: list[Any], place: int) -> Entries | None:
        """The entries after an operation that `analysis` treats as a step; None for other operations."""
        name, entries = equation.primitive.name, operands[place]

        def same(array: Array | None) -> Any:
            return None if array is None else _bind(equation, [*operands[:place], array, *operands[place + 1 :]])[0]

        match name:
            case "reshape" | "transpose" | "squeeze" | "rev" | "copy" | "copy_p" | "broadcast_in_dim":
                return Entries(*map(same, (entries.value, entries.passes, entries.move, entries.kept)))
            case "convert_element_type" | "pvary" | "pcast":
                return Entries(same(entries.value), entries.passes, same(entries.move), entries.kept)
            case mask_p.name if place == 0:
                return Entries(same(entries.value))
            case mask_p.name:
                return self._masked(entries, same(entries.value), operands[0], ours=True)
            case "select_n" if place > 0:
                chosen = operands[0] == (place - 1)
                return self._masked(entries, same(entries.value), jnp.broadcast_to(chosen, entries.value.shape))
        return None

    def _masked(self, entries: Entries, value: Array, mask: Array, *, ours: bool = False) -> Entries:
        kept = None
        if ours:
            kept = mask if entries.kept is None else entries.kept & mask
        if ours and self.straight:
            return replace(entries, value=value, kept=kept)
        passes = mask if entries.passes is None else entries.passes & mask
        move = None if entries.move is None else jnp.where(mask, entries.move, 0)
        return Entries(value, passes, move, kept)

    def _scan(self, equation: Any, operands: list[Any], here: Position) -> list[Any]:
        loop = Loop(equation)
        consts, before, xs = loop.split(operands)
        stays = loop.unchanged
        products = {at: value for at, value in self.products.items() if at[: len(here)] == here}

        def step(carry: list[Array], slices: tuple[list[Any], dict[Position, Array]]) -> Any:
            changing = iter(carry)
            whole = [value if same else next(changing) for value, same in zip(before, stays, strict=True)]
            run = _Run(self.sites, slices[1], {}, self.straight, self.sparse)
            results = run.evaluate(loop.jaxpr, loop.consts, [*consts, *whole, *slices[0]], here)
            results = [result if same else _plain(result) for result, same in _zip_rest(results, stays)]
            after = [result for result, same in zip(results, stays, strict=False) if not same]
            return after, (results[len(before) :], run.seen)

        params = equation.params
        options = {name: params[name] for name in ("length", "reverse", "unroll") if name in params}
        start = [_plain(value) for value, same in zip(before, stays, strict=True) if not same]
        after, (ys, seen) = lax.scan(step, start, (xs, products), **options)
        for at, saw in seen.items():
            # Unless it was sliced, a mask inside a loop is the same in every step.
            whole = saw.passes is None or self.sites[at].is_sliced_by(here)
            self.seen[at] = saw if whole else replace(saw, passes=saw.passes[0])
        changed = iter(after)
        return [*(value if same else next(changed) for value, same in zip(before, stays, strict=True)), *ys]

    def _cond(self, equation: Any, operands: list[Any], here: Position) -> list[Any]:
        def branch(i: int, closed: Any) -> Any:
            def run(*operands: Any) -> list[Any]:
                return [_plain(result) for result in self.evaluate(closed.jaxpr, closed.consts, list(operands), at)]

            at = (*here, i)
            return run

        branches = [branch(i, closed) for i, closed in enumerate(equation.params["branches"])]
        return lax.switch(operands[0], branches, *operands[1:])


def _zip_rest(results: list[Any], stays: list[bool]) -> Any:
    return zip(results, [*stays, *[False] * (len(results) - len(stays))], strict=True)


def _bind(equation: Any, operands: list[Any]) -> list[Any]:
    params = equation.primitive.get_bind_params(equation.params)
    with equation.ctx.manager:
        results = equation.primitive.bind(*operands, **params)
    return list(results) if equation.primitive.multiple_results else [results]
