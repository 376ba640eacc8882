"""A compiled training step and its state: the library, called from Python through one struct."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nttzoo._util.checks import check_choice, check_flag, check_number
from nttzoo.codegen import build
from nttzoo.codegen.training.source import TrainingSource
from nttzoo.codegen.training.tables import Tables

EVALUATE, GRADIENT, TRAIN = 0, 1, 2
LOSSES = ("cross_entropy", "squared")
RULES = ("sgd", "adam")
SLOTS = 16  # maximum number of partial gradients, which are added in a fixed order
MOST_THREADS = 64


class _Net(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("lists", "theta", "back", "starts", "back_starts", "norm_starts")]


class _Rule(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("nesterov", ctypes.c_int32),
        *((name, ctypes.c_float) for name in ("momentum", "beta1", "beta2", "rest1", "rest2", "epsilon", "decay")),
    ]


class _Job(ctypes.Structure):
    _fields_ = [
        ("net", _Net),
        *((name, ctypes.c_void_p) for name in ("theta", "back", "back_from")),
        *((name, ctypes.c_int64) for name in ("size", "back_size", "partial_size")),
        *((name, ctypes.c_void_p) for name in ("images", "levels", "labels", "order")),
        *((name, ctypes.c_int64) for name in ("batch", "steps", "slots", "threads", "mode", "loss")),
        ("rule", _Rule),
        *((name, ctypes.c_void_p) for name in ("rates", "powers", "first", "second", "gradient", "arenas", "partials")),
        ("key", ctypes.c_uint64),
        *((name, ctypes.c_void_p) for name in ("losses", "hits", "logits")),
    ]


@dataclass(frozen=True)
class UpdateRule:
    """How a step moves the weights: "adam" (with decoupled decay) or "sgd" (with momentum and L2 decay)."""

    kind: str = "adam"
    momentum: float = 0.0
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, RULES)
        check_flag("nesterov", self.nesterov)
        for name in ("momentum", "beta1", "beta2"):
            check_number(name, getattr(self, name), "a number in [0, 1)", 0, 1)
        check_number("epsilon", self.epsilon, "positive", 0)
        check_number("weight_decay", self.weight_decay, "a number, 0 or more", 0)

    def to_c(self) -> _Rule:
        """The rule as a C struct."""
        betas = (self.beta1, self.beta2, 1 - self.beta1, 1 - self.beta2)
        return _Rule(RULES.index(self.kind), self.nesterov, self.momentum, *betas, self.epsilon, self.weight_decay)


def update_rule(optimizer: str | UpdateRule) -> UpdateRule:
    """The rule of a named optimizer with its default values; an `UpdateRule` is returned as it is."""
    if isinstance(optimizer, UpdateRule):
        return optimizer
    check_choice("optimizer", optimizer, RULES)
    return UpdateRule(kind=optimizer)


@dataclass
class Memory:
    """The state of training: weights, moments and the powers of Adam's decay rates."""

    theta: np.ndarray
    first: np.ndarray
    second: np.ndarray
    powers: np.ndarray
    steps: int = 0

    @classmethod
    def start(cls, theta: np.ndarray) -> Memory:
        """The state before the first step."""
        return cls(theta, np.zeros_like(theta), np.zeros_like(theta), np.ones(2))

    def copy(self) -> Memory:
        """A copy with arrays of its own."""
        return Memory(self.theta.copy(), self.first.copy(), self.second.copy(), self.powers.copy(), self.steps)


@dataclass(frozen=True)
class Outcome:
    """The result of a call: losses and hits of the completed steps, and of a step that was not finite."""

    done: int
    losses: np.ndarray
    hits: np.ndarray


class Library:
    """The C of a training step, loaded, with the tables of one mask."""

    def __init__(self, path: Path, source: TrainingSource, tables: Tables):
        self.path = path
        self.source = source
        self.tables = tables
        self._run = ctypes.CDLL(str(path)).training_run
        self._run.argtypes = [ctypes.POINTER(_Job)]
        self._run.restype = ctypes.c_int64
        self._pointers = (ctypes.c_void_p * len(tables.lists))(*(table.ctypes.data for table in tables.lists))
        self._back = build.aligned(max(len(tables.back_from), 1))
        self._scratch: dict[tuple[int, int], tuple[np.ndarray, ...]] = {}

    def run(
        self,
        memory: Memory,
        images: np.ndarray,
        labels: np.ndarray | None,
        order: np.ndarray,
        *,
        mode: int,
        threads: int,
        levels: np.ndarray | None = None,
        loss: str = "cross_entropy",
        rule: UpdateRule | None = None,
        rates: Sequence[float] | np.ndarray = (),
        key: int = 0,
        logits: np.ndarray | None = None,
        gradient: np.ndarray | None = None,
    ) -> Outcome:
        """Takes a step for each row of `order` [steps, batch], indices of images.

        `images`: float32 [n, inputs], or uint8 with `levels` [channels, 256], the float of each level. `gradient`
        receives that of the last step, `logits` [batch, outputs] those of the last step.
        """
        steps, batch = order.shape
        slots = min(SLOTS, -(-batch // self.source.block))
        threads = max(1, min(threads, slots, MOST_THREADS))
        arenas, partials, sums = self._memory(threads, slots)
        losses, hits = np.zeros(steps), np.zeros(steps, np.int64)
        order = np.ascontiguousarray(order, np.int64)
        rates = np.ascontiguousarray(rates, np.float32)
        labels = None if labels is None else np.ascontiguousarray(labels, np.int32)
        tables = self.tables
        pointers = (memory.theta, self._back, tables.starts, tables.back_starts, tables.norm_starts)
        job = _Job(
            net=_Net(ctypes.addressof(self._pointers), *(array.ctypes.data for array in pointers)),
            theta=memory.theta.ctypes.data,
            back=self._back.ctypes.data,
            back_from=tables.back_from.ctypes.data,
            size=len(tables.parameters),
            back_size=len(tables.back_from),
            partial_size=max(tables.partial, 1),
            images=images.ctypes.data,
            levels=_address(levels),
            labels=_address(labels),
            order=order.ctypes.data,
            batch=batch,
            steps=steps,
            slots=slots,
            threads=threads,
            mode=mode,
            loss=LOSSES.index(loss),
            rule=(rule or UpdateRule()).to_c(),
            rates=rates.ctypes.data,
            powers=memory.powers.ctypes.data,
            first=memory.first.ctypes.data,
            second=memory.second.ctypes.data,
            gradient=sums.ctypes.data,
            arenas=arenas.ctypes.data,
            partials=partials.ctypes.data,
            key=key,
            losses=losses.ctypes.data,
            hits=hits.ctypes.data,
            logits=_address(logits),
        )
        done = int(self._run(ctypes.byref(job)))
        if mode == TRAIN:
            memory.steps += done
        if gradient is not None:
            gradient[...] = sums[: len(tables.parameters)]
        seen = min(done + 1, steps)
        return Outcome(done, losses[:seen], hits[:seen])

    def _memory(self, threads: int, slots: int) -> tuple[np.ndarray, ...]:
        """Arenas, partial sums and gradients for a number of threads, reused by later calls."""
        if (threads, slots) not in self._scratch:
            block, size = self.source.block, len(self.tables.parameters)
            self._scratch[threads, slots] = (
                build.aligned(threads * self.source.arena * block),
                build.aligned(threads * max(self.tables.partial, 1) * block),
                build.aligned(max(slots * size, 1)),
            )
        return self._scratch[threads, slots]


def _address(array: Any) -> int | None:
    return None if array is None else array.ctypes.data
