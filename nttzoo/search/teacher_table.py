"""The teacher's outputs and kernel on all images at once, for small sets that a search sees again and again."""

from __future__ import annotations

from flax import nnx
from jaxtyping import Array

from nttzoo.ntk.api import Tangents, empirical_ntk
from nttzoo.ntk.distance import entries
from nttzoo.search.config import Plan
from nttzoo.search.objective import Behavior

# A larger table is not kept: every step computes its part of the teacher's kernel.
TABLE_BYTES = 2**28


def pays(images: int, outputs: int, plan: Plan, batch_size: int) -> bool:
    """Whether the table fits into memory and costs less than the steps that it replaces."""
    fits = 4 * (images * outputs) ** 2 <= TABLE_BYTES
    # A step computes (batch_size / 2)^2 blocks of the kernel, the table has images^2.
    return fits and plan.steps * batch_size**2 > 4 * images**2


def make(teacher: nnx.Module, x: Array, tangents: Tangents) -> Behavior:
    """The table for preprocessed images."""
    return Behavior(nnx.clone(teacher)(x), empirical_ntk(teacher, x, tangents=tangents))


def look_up(table: Behavior, mine: Array, columns: Array, own: Array | None, outputs: Array | None) -> Behavior:
    """The teacher between this device's rows and all columns; likewise for the sampled outputs, own and all."""
    rows = mine[: len(mine) // 2]
    kernel = table.kernel[rows[:, None], columns[None, :]]
    if own is not None and outputs is not None:
        kernel = entries(kernel, own[: len(rows)], outputs[len(columns) :])
    return Behavior(table.outputs[mine], kernel)
