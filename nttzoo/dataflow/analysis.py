"""Where a program's parameters act: as weights of products, as their biases, or in some other way."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, jaxprs_in_params

from nttzoo.dataflow.products import product_of
from nttzoo.dataflow.sites import Active, Fixed, Loops, Position, Site, Step, Value, Weights, numbered, site_of
from nttzoo.nn.layers import mask_p

_CALLS = ("jit", "pjit", "closed_call", "core_call", "checkpoint", "remat", "remat2")
_MOVES = ("reshape", "transpose", "squeeze", "rev", "copy", "copy_p", "convert_element_type", "pvary", "pcast")


class Analysis:
    """The result of `run`: `sites`, the parameters that are `loose`, and the masks whose derivative is undefined."""

    def __init__(self) -> None:
        self.sites: dict[Position, Site] = {}
        self.products: dict[Position, Site] = {}  # also those of loose parameters
        self.loose: dict[int, set[str]] = {}  # with the operations that made them loose
        self.hidden_masks: list[str] = []  # operations that apply masks to computed values
        self._biases: dict[Position, tuple[int, bytes]] = {}

    def run(self, jaxpr: Any, consts: int, parameters: int) -> None:
        """Visits a program whose first arguments are the parameters and whose last is the example."""
        fixed = len(jaxpr.invars) - parameters - 1
        weights = [Weights(i, var.aval.shape) for i, var in enumerate(jaxpr.invars[:parameters])]
        args: list[Value] = [*weights, *(Fixed() for _ in range(fixed)), Active()]
        for result in self._visit(jaxpr, [Fixed() for _ in range(consts)], args, (), ()):
            self._loosen([result], "the model's output")
        self.products = dict(self.sites)
        self._settle()

    def _settle(self) -> None:
        """Sites of one parameter must agree on their layout, and so must their biases."""
        before = -1
        for position, (bias, _) in self._biases.items():
            if position in self.sites:
                self.sites[position] = replace(self.sites[position], bias=bias)
        while before != len(self.loose):
            before = len(self.loose)
            layouts: dict[int, set[Any]] = {}
            for position, site in self.sites.items():
                layouts.setdefault(site.parameter, set()).add((site.layout, self._biases.get(position)))
            owners: dict[int, set[int]] = {}
            for site in self.sites.values():
                if site.bias is not None:
                    owners.setdefault(site.bias, set()).add(site.parameter)
            for bias, parameters in owners.items():
                if len(parameters) > 1 or bias in layouts or bias in self.loose or parameters & self.loose.keys():
                    self.loose.setdefault(bias, set()).add("add")
            for position, site in self.sites.items():
                if site.bias in self.loose:
                    self.sites[position] = replace(site, bias=None)
                    self._biases.pop(position, None)
            for parameter, found in layouts.items():
                if len(found) > 1 and not self._differ_by_bias_only(found):
                    self.loose.setdefault(parameter, set()).add("several layouts")
                elif len(found) > 1:
                    for bias in {layout[0][-1] for layout in found} - {None}:
                        self.loose.setdefault(bias, set()).add("add")
        self.sites = {position: site for position, site in self.sites.items() if site.parameter not in self.loose}

    @staticmethod
    def _differ_by_bias_only(layouts: set[Any]) -> bool:
        return len({layout[0][:-1] for layout in layouts}) == 1

    def _loosen(self, values: list[Value], why: str) -> None:
        for value in values:
            if isinstance(value, Weights):
                self.loose.setdefault(value.parameter, set()).add(why)

    def _visit(self, jaxpr: Any, consts: list[Value], args: list[Value], at: Position, around: Loops) -> list[Value]:
        values: dict[Any, Value] = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

        def read(atom: Any) -> Value:
            return Fixed() if isinstance(atom, Literal) else values[atom]

        atoms = [atom for equation in jaxpr.eqns for atom in equation.invars] + list(jaxpr.outvars)
        uses = Counter(atom for atom in atoms if not isinstance(atom, Literal))
        products: dict[Any, Position] = {}  # results of products that are used once
        for i, equation in enumerate(jaxpr.eqns):
            here = (*at, i)
            operands = [read(atom) for atom in equation.invars]
            results = self._equation(equation, operands, here, around)
            if here in self.sites and uses[equation.outvars[0]] == 1:
                products[equation.outvars[0]] = here
            elif equation.primitive.name == "add":
                self._add(equation, operands, products)
            values |= zip(equation.outvars, results, strict=True)
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(self, equation: Any, operands: list[Value], here: Position, around: Loops) -> list[Value]:
        name = equation.primitive.name
        weights = [i for i, value in enumerate(operands) if isinstance(value, Weights)]
        active: list[Value] = [Active() for _ in equation.outvars]
        if not weights:
            if all(isinstance(value, Fixed) for value in operands):
                loops = frozenset().union(*(value.loops for value in operands if isinstance(value, Fixed)))
                return [Fixed(loops) for _ in equation.outvars]
            if applies_mask(equation):
                self.hidden_masks.append(name)
            return active
        if called := called_program(equation):
            jaxpr, consts = called
            return self._visit(jaxpr, [Fixed() for _ in consts], operands, here, around)
        if name == "scan":
            return self._scan(equation, operands, here, around)
        if name == "cond":
            return self._cond(equation, operands, here, around)
        if moved := _moved(equation, operands):
            return [moved]
        if len(weights) == 1 and not operands[weights[0]].spread:  # type: ignore[union-attr]
            operand: Any = operands[weights[0]]
            if product := product_of(equation, weights[0]):
                self.sites[here] = site_of(operand, product, equation.outvars[0].aval, around)
                return active
        if name == mask_p.name and weights == [1]:  # a mask that is not fixed
            self._loosen(operands, name)
            kernel: Any = operands[1]
            return [replace(kernel, steps=(*kernel.steps, Step(name, str(here))))]
        if applies_mask(equation):
            self.hidden_masks.append(name)
        if name != "add":  # else it may be a bias
            self._loosen(operands, name)
        return active

    def _scan(self, equation: Any, operands: list[Value], here: Position, around: Loops) -> list[Value]:
        """What a loop carries unchanged is treated as constant; slices of its inputs are tracked in each step."""
        loop = Loop(equation)
        consts, carry, xs = loop.split(operands)
        self._loosen([value for value, stays in zip(carry, loop.unchanged, strict=True) if not stays], "scan")
        kept: list[Value] = [value if same else Active() for value, same in zip(carry, loop.unchanged, strict=True)]
        args = [*consts, *kept, *(_slice(x, here) for x in xs)]
        inner: list[Value] = [Fixed() for _ in loop.consts]
        results = self._visit(loop.jaxpr, inner, args, here, (*around, (here, equation.params["length"])))
        changed = [value for i, value in enumerate(results) if i >= len(carry) or not loop.unchanged[i]]
        self._loosen(changed, "scan")
        return [*kept, *(Active() for _ in results[len(carry) :])]

    def _cond(self, equation: Any, operands: list[Value], here: Position, around: Loops) -> list[Value]:
        """Products inside a branch have no rule, but masks inside it are recorded."""
        self._loosen(operands, "cond")
        for i, branch in enumerate(equation.params["branches"]):
            consts: list[Value] = [Fixed() for _ in branch.consts]
            self._visit(branch.jaxpr, consts, operands[1:], (*here, i), around)
        return [Active() for _ in equation.outvars]

    def _add(self, equation: Any, operands: list[Value], products: dict[Any, Position]) -> None:
        """A parameter that is added to a product's results, each entry to all positions of one unit, is its bias."""
        for one, two in ((0, 1), (1, 0)):
            value, atom = operands[one], equation.invars[two]
            site = None if isinstance(atom, Literal) else products.get(atom)
            if site is not None and isinstance(value, Weights):
                entries = _bias_entries(value, self.sites[site])
                if entries is not None:
                    self._biases[site] = (value.parameter, entries)
                    return
        self._loosen(operands, "add")


def _slice(value: Value, loop: Position) -> Value:
    if isinstance(value, Weights) and not value.spread:
        return replace(value, steps=(*value.steps, Step("slice", str(loop))), loops=value.loops | {loop})
    return replace(value, loops=value.loops | {loop}) if isinstance(value, Fixed | Weights) else value


@dataclass(frozen=True)
class Loop:
    """The parts of a `scan` equation."""

    equation: Any

    @property
    def jaxpr(self) -> Any:
        return self.equation.params["jaxpr"].jaxpr

    @property
    def consts(self) -> Any:
        return self.equation.params["jaxpr"].consts

    def split(self, operands: list[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """(constants, initial carry, inputs of the steps)."""
        start = self.equation.params["num_consts"]
        stop = start + self.equation.params["num_carry"]
        return operands[:start], operands[start:stop], operands[stop:]

    @property
    def unchanged(self) -> list[bool]:
        """Which values of the carry every step passes on unchanged."""
        _, before, _ = self.split(self.jaxpr.invars)
        return [one is two for one, two in zip(before, self.jaxpr.outvars, strict=False)]


def called_program(equation: Any) -> tuple[Any, list[Any]] | None:
    """(program, its constants), if an equation only calls one."""
    if equation.primitive.name not in _CALLS:
        return None
    inner = equation.params.get("jaxpr") or equation.params["call_jaxpr"]
    return (inner.jaxpr, inner.consts) if hasattr(inner, "consts") else (inner, [])


def applies_mask(equation: Any) -> bool:
    """Whether an equation, or one inside it, applies a mask of nttzoo's layers."""
    if equation.primitive is mask_p:
        return True
    return any(applies_mask(inner) for jaxpr in jaxprs_in_params(equation.params) for inner in jaxpr.eqns)


def _moved(equation: Any, operands: list[Value]) -> Weights | None:
    """The result of an equation that only moves, casts or masks the entries of its one operand with weights."""
    name, places = equation.primitive.name, [i for i, value in enumerate(operands) if isinstance(value, Weights)]
    others = [value for value in operands if not isinstance(value, Weights)]
    if len(places) != 1:
        return None
    (place,) = places
    moved: Any = operands[place]
    if not all(isinstance(value, Fixed) and value.loops <= moved.loops for value in others) and not (
        name == mask_p.name and place == 0  # the mask does not depend on what it is applied to
    ):
        return None
    before, after = equation.invars[place].aval, equation.outvars[0].aval
    numbers = _is_floating(before) and _is_floating(after)
    masking = before.dtype == bool and (after.dtype == bool or name == mask_p.name)
    if not numbers and not masking:
        return None
    # Only the condition of a `select_n` matters here, not the values that replace masked entries.
    fixed: Any = tuple(value for value in others[:1] if isinstance(value, Fixed))
    step = Step(name, f"{place} {sorted(equation.params.items(), key=str)}", fixed, equation)
    if name == "broadcast_in_dim":
        spread = moved.spread or math.prod(before.shape) != math.prod(after.shape)
        return replace(moved, steps=(*moved.steps, step), spread=spread)
    masks = name == mask_p.name or (name == "select_n" and place > 0)
    if name in _MOVES or (masks and not moved.spread):
        return replace(moved, steps=(*moved.steps, step))
    return None


def _is_floating(aval: Any) -> bool:
    return jnp.issubdtype(aval.dtype, jnp.floating)


def _bias_entries(bias: Weights, site: Site) -> bytes | None:
    """Which entry of the bias is added to each unit [g, c] of a product, if every entry has exactly one of its own."""
    masked = any(step.name in (mask_p.name, "select_n") for step in bias.steps)
    if masked or bias.loops or any(site.sliced):
        return None
    entries = numbered(bias.shape, bias.steps)
    if entries is None or entries.ndim != len(site.results):
        return None
    found = site.product.outputs(np.broadcast_to(entries, site.results), 0)  # type: ignore[arg-type]
    own = np.sort(found[0].ravel())
    whole = np.array_equal(own, np.arange(math.prod(bias.shape))) and (found == found[:1]).all()
    return found[0].tobytes() if whole else None
