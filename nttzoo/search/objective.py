"""The loss of Neural Tangent Transfer, pure: how far a sparse student is from its dense teacher.

    mean over batch and outputs of (f_student - f_teacher)^2
  + kernel_weight * mean over all entries of (K_student(x1, x2) - K_teacher(x1, x2))^2
  + weight_decay / density * sum of squared surviving weights

f are logits; x1 and x2 are the two halves of the batch. Variants of the first two terms: see `LossCoefficients`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Float

from nttzoo.nn import masked_layers
from nttzoo.ntk.api import Tangents, outputs_and_kernel
from nttzoo.ntk.distance import mean_squared_entry
from nttzoo.ntk.factors import Outputs
from nttzoo.ntk.sharding import Exchange

OutputLoss = Literal["squared", "reverse_kl"]


class Behavior(NamedTuple):
    """What a network does on a batch: its outputs [n, o], and its kernel between the halves for r of the outputs."""

    outputs: Float[Array, "n o"]
    kernel: Float[Array, "n//2 _ r r"]


class Terms(NamedTuple):
    """The terms of the loss, before they are weighted."""

    target: Any
    kernel: Any
    decay: Any


@dataclass(frozen=True, kw_only=True)
class LossCoefficients:
    """Coefficients of the loss terms: gamma^2 and beta of the paper, for means over entries; and variants of them.

    `output_loss`: "reverse_kl" puts the Kullback-Leibler divergence of the student's softmax from the teacher's in
    place of the squared difference. `normalize_kernels`: the student's kernel is first scaled to the teacher's norm.
    """

    kernel_weight: float
    weight_decay: float
    output_loss: OutputLoss = "squared"
    normalize_kernels: bool = False


def behavior(
    model: nnx.Module,
    x: Float[Array, "n ..."],
    outputs: Outputs = None,
    *,
    tangents: Tangents = "all",
    exchange: Exchange | None = None,
    sparse: bool = False,
) -> Behavior:
    """Outputs and kernel of a model in evaluation mode; `outputs` picks those whose kernel is looked at (None: all).

    With `sparse`, its convolutions skip pruned weights where they can: faster, if few are left.
    """
    active = tangents == "active"
    return Behavior(*outputs_and_kernel(model, x, outputs, active=active, exchange=exchange, sparse=sparse))


def distances(
    student: Behavior, teacher: Behavior, outputs: Outputs = None
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """(target, kernel): mean squared differences of outputs and of kernel entries, the latter estimated if r < o."""
    target = jnp.mean(jnp.square(student.outputs - teacher.outputs))
    return target, mean_squared_entry(student.kernel - teacher.kernel, outputs, student.outputs.shape[1])


def reverse_kl(student: Float[Array, "n o"], teacher: Float[Array, "n o"]) -> Float[Array, ""]:
    """The divergence of the student's softmax from the teacher's, averaged over the batch."""
    ours, theirs = jax.nn.log_softmax(student), jax.nn.log_softmax(teacher)
    return jnp.mean(jnp.sum(jnp.exp(ours) * (ours - theirs), -1))


def _norm(kernel: Float[Array, "n m r r"], exchange: Exchange | None) -> Float[Array, ""]:
    """The root of the mean squared entry, over all devices."""
    square = jnp.mean(jnp.square(kernel))
    return jnp.sqrt(lax.pmean(square, exchange.axis) if exchange else square)


def surviving_squares(model: nnx.Module) -> Float[Array, ""]:
    """The sum of squared surviving weights."""
    squares = (jnp.sum(jnp.square(layer.masked_kernel())) for layer in masked_layers(model).values())
    return sum(squares)  # type: ignore[return-value]


def ntt_loss(
    student: nnx.Module,
    teacher: Behavior,
    x: Float[Array, "n ..."],
    outputs: Outputs = None,
    *,
    density: float | Array,
    coefficients: LossCoefficients,
    tangents: Tangents = "all",
    exchange: Exchange | None = None,
    sparse: bool = False,
) -> tuple[Float[Array, ""], Terms]:
    """The loss of a student in evaluation mode on a batch, and its terms; `density` is the one aimed at.

    `teacher` is the teacher's behavior on the same batch and outputs. With an `exchange`, batch and behavior are one
    device's part, and the loss is the mean over devices of what each gets. `sparse`: see `behavior`.
    """
    seen = behavior(student, x, outputs, tangents=tangents, exchange=exchange, sparse=sparse)
    if coefficients.normalize_kernels:
        seen = seen._replace(kernel=seen.kernel * (_norm(teacher.kernel, exchange) / _norm(seen.kernel, exchange)))
    target, kernel = distances(seen, teacher, outputs)
    if coefficients.output_loss == "reverse_kl":
        target = reverse_kl(seen.outputs, teacher.outputs)
    decay = surviving_squares(student)
    loss = target + coefficients.kernel_weight * kernel + coefficients.weight_decay / density * decay
    return loss, Terms(target, kernel, decay)
