"""GRU, LSTM and simple recurrent layers, step by step: the weights of all steps are one table in the C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from nttzoo.codegen.functions import Function
from nttzoo.codegen.ir import Binary, Linear
from nttzoo.codegen.operators.joining import join
from nttzoo.codegen.operators.layers import linear
from nttzoo.codegen.reader import READERS, Batch, Reader, called
from nttzoo.errors import ExportError

LONGEST = 512  # steps

_DEFAULTS = {"RNN": [b"Tanh"], "GRU": [b"Sigmoid", b"Tanh"], "LSTM": [b"Sigmoid", b"Tanh", b"Tanh"]}


@dataclass
class _Cell:
    """One direction of a layer: recurrent weights [h, gates * h] and biases, and how its values are combined."""

    reader: Reader
    node: onnx.NodeProto
    hidden: int
    weight: np.ndarray
    bias: np.ndarray
    after: bool  # GRU: the reset gate acts after the product, not before it
    function: str  # of a simple layer

    def recur(self, state: str, gates: slice) -> str:
        part = slice(gates.start * self.hidden, gates.stop * self.hidden)
        op = Linear(self.node.name, [state], self.new(), self.weight[:, part], self.bias[part])
        return self.reader.add(op, (op.weight.shape[1],))

    def new(self) -> str:
        return self.reader.new(self.node, "step")

    def gate(self, value: str, index: int) -> str:
        part = slice(index * self.hidden, (index + 1) * self.hidden)
        return self.reader.view(self.node, value, lambda array: array[part])

    def add(self, a: str, b: str, function: str | None = None) -> str:
        after: tuple[Function, ...] = ((function,),) if function else ()
        return self.reader.map(self.node, [a, b], after=after)

    def apply(self, value: str, function: str) -> str:
        return self.reader.map(self.node, [value], after=((function,),))

    def combine(self, kind: str, a: str, b: str) -> str:
        return self.reader.add(Binary(self.node.name, [a, b], self.new(), kind), self.reader.shapes[a])

    def rnn(self, x: str, h: str, c: str) -> tuple[str, str]:
        return self.add(x, self.recur(h, slice(0, 1)), self.function), c

    def lstm(self, x: str, h: str, c: str) -> tuple[str, str]:
        total = self.add(x, self.recur(h, slice(0, 4)))
        i, o, f = (self.apply(self.gate(total, index), "sigmoid") for index in range(3))
        new = self.combine("mul", i, self.apply(self.gate(total, 3), "tanh"))
        cell = self.add(self.combine("mul", f, c), new)
        return self.combine("mul", o, self.apply(cell, "tanh")), cell

    def gru(self, x: str, h: str, c: str) -> tuple[str, str]:
        gates = self.recur(h, slice(0, 3 if self.after else 2))
        z, r = (self.add(self.gate(x, index), self.gate(gates, index), "sigmoid") for index in range(2))
        if self.after:
            inner = self.combine("mul", r, self.gate(gates, 2))
        else:
            inner = self.recur(self.combine("mul", r, h), slice(2, 3))
        new = self.add(self.gate(x, 2), inner, "tanh")
        return self.add(new, self.combine("mul", z, self.combine("sub", h, new))), c


def _recurrent(reader: Reader, node: onnx.NodeProto, given: dict[str, Any]) -> None:
    name, layout = reader.value(node), given.get("layout", 0)
    if reader.batches[name] != Batch(0 if layout else 1):
        raise ExportError(f"{called(node)}: axis {0 if layout else 1} of its input must be the batch.")
    steps, _ = reader.shapes[name]
    if steps > LONGEST:
        raise ExportError(f"{called(node)}: {steps} steps are more than {LONGEST}, the most that are compiled.")
    if given.get("clip") or given.get("input_forget") or reader.constant(node, 7) is not None:
        raise ExportError(f"{called(node)}: clip, input_forget and peepholes are not supported.")
    weight, recurrent = reader.needed(node, 1), reader.needed(node, 2)
    directions, hidden = len(weight), recurrent.shape[2]
    bias = reader.constant(node, 3)
    bias = np.zeros((directions, 2 * weight.shape[1])) if bias is None else bias
    if (lengths := reader.constant(node, 4)) is not None and (lengths != steps).any():
        raise ExportError(f"{called(node)}: sequences of different lengths are not supported.")
    activations = given.get("activations", _DEFAULTS[node.op_type] * directions)
    direction = given.get("direction", b"forward").decode()
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    answers, lasts = [], []
    for index, backwards in enumerate(ways):
        own = [kind.decode().lower() for kind in activations[index * len(activations) // len(ways) :]]
        own = own[: len(_DEFAULTS[node.op_type])]
        simple = own[0] if node.op_type == "RNN" else "tanh"
        if simple not in ("tanh", "relu", "sigmoid") or (
            node.op_type != "RNN" and own != [kind.decode().lower() for kind in _DEFAULTS[node.op_type]]
        ):
            raise ExportError(f"{called(node)}: activations {own} are not supported.")
        states = [_initial(reader, node, place, index, hidden, layout) for place in (5, 6)]
        first, second = np.split(bias[index], 2)
        after = bool(given.get("linear_before_reset"))
        cell = _Cell(reader, node, hidden, recurrent[index].T, second.astype(np.float32), after, simple)
        step: Callable[[str, str, str], tuple[str, str]] = getattr(cell, node.op_type.lower())
        gates = reader.new(node, "gates")
        linear(reader, node, name, weight[index].T, first, gates)
        hiddens = [""] * steps
        h, c = states
        for time in reversed(range(steps)) if backwards else range(steps):
            x = reader.view(node, gates, partial(np.take, indices=time, axis=0))
            h, c = step(x, h, c)
            hiddens[time] = h
        answers.append(hiddens)
        lasts.append(h)
    _outputs(reader, node, answers, lasts, hidden, layout)


def _initial(reader: Reader, node: onnx.NodeProto, place: int, direction: int, hidden: int, layout: int) -> str:
    """The state before the first step: zeros, or a constant that is the same for all examples."""
    state = np.zeros(hidden)
    if place < len(node.input) and node.input[place]:
        pair = [value.swapaxes(0, 1) if layout else value for value in reader.both(node, place)]
        state = pair[0][direction][0]
        if any((value[direction] != state).any() for value in pair):
            raise ExportError(f"{called(node)}: initial states that differ between examples are not supported.")
    return join(reader, node, [], state)


def _outputs(
    reader: Reader, node: onnx.NodeProto, answers: list[list[str]], lasts: list[str], hidden: int, layout: int
) -> None:
    """All hidden states [steps, directions, (batch,) h], and the last ones."""
    steps, directions = len(answers[0]), len(answers)
    flat = np.arange(steps * directions * hidden).reshape(steps, directions, hidden)
    parts = [
        (name, flat[time, direction]) for direction, names in enumerate(answers) for time, name in enumerate(names)
    ]
    if node.output[0]:
        join(reader, node, parts, np.zeros(flat.shape), Batch(0 if layout else 2), node.output[0])
    if len(node.output) > 1 and node.output[1]:
        ends = [(name, np.arange(hidden) + direction * hidden) for direction, name in enumerate(lasts)]
        join(reader, node, ends, np.zeros((directions, hidden)), Batch(0 if layout else 1), node.output[1])


for _kind in _DEFAULTS:
    READERS.register(_kind)(_recurrent)
