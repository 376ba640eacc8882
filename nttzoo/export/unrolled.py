"""Recurrent layers written out step by step, as exporters want them.

`nnx.RNN` draws its first state, zeros, from a stream of random numbers inside of a scan; that cannot be exported.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array

from nttzoo.errors import ExportError


class Unrolled(nnx.Module):
    """What `nnx.RNN` computes, one call of its cell after the other; takes over an RNN's attributes."""

    def __call__(
        self,
        inputs: Array,
        *,
        initial_carry: Any = None,
        seq_lengths: Array | None = None,
        return_carry: bool | None = None,
        time_major: bool | None = None,
        reverse: bool | None = None,
        keep_order: bool | None = None,
        rngs: Any = None,
    ) -> Any:
        if seq_lengths is not None:
            raise ExportError("a recurrent layer with seq_lengths cannot be exported: give sequences of one length.")
        layer: Any = self
        time_major = layer.time_major if time_major is None else time_major
        reverse = layer.reverse if reverse is None else reverse
        keep_order = layer.keep_order if keep_order is None else keep_order
        axis = 0 if time_major else inputs.ndim - (layer.cell.num_feature_axes + 1)
        steps = [jax.lax.index_in_dim(inputs, time, axis, keepdims=False) for time in range(inputs.shape[axis])]
        if reverse:
            steps.reverse()
        carry = _first_state(layer.cell, steps[0]) if initial_carry is None else initial_carry
        outputs = []
        for step in steps:
            carry, output = layer.cell(carry, step)
            outputs.append(output)
        if reverse and keep_order:
            outputs.reverse()
        stacked = jnp.stack(outputs, axis)
        return (carry, stacked) if (layer.return_carry if return_carry is None else return_carry) else stacked


def _first_state(cell: Any, step: Array) -> Any:
    """The cell's state before the first step, for a batch of any size; it must be zeros."""
    features = step.shape[step.ndim - cell.num_feature_axes :]
    with jax.ensure_compile_time_eval():
        one = jax.tree.map(np.asarray, cell.initialize_carry((1, *features), nnx.Rngs(0)))
    if any(state.any() for state in jax.tree.leaves(one)):
        raise ExportError(f"{type(cell).__name__} starts from random states: only zeros can be exported.")
    batch = step.shape[: step.ndim - cell.num_feature_axes]
    return jax.tree.map(lambda state: jnp.zeros((*batch, *state.shape[1:]), state.dtype), one)
