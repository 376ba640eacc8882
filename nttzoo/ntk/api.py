"""`empirical_ntk`: the kernel between two sets of examples; and a batch's outputs and kernel from one pass."""

from __future__ import annotations

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Num

from nttzoo._util.checks import check_choice, check_count, check_model
from nttzoo.errors import ModelError
from nttzoo.nn import path_name
from nttzoo.ntk.blocks import FindShares, block_sizes, default_memory, kernel_blocks, pair_shares
from nttzoo.ntk.factors import Outputs
from nttzoo.ntk.inputs import check_inputs
from nttzoo.ntk.selfcheck import checked_shares
from nttzoo.ntk.sharding import Exchange

Tangents = Literal["all", "active"]


def empirical_ntk(
    model: nnx.Module,
    x1: Num[Array | np.ndarray, "n1 ..."],
    x2: Num[Array | np.ndarray, "n2 ..."] | None = None,
    *,
    tangents: Tangents = "all",
    outputs: Literal["full", "trace"] = "full",
    memory: int | None = None,
) -> Float[Array, "n1 n2 o o"] | Float[Array, "n1 n2"]:
    """The empirical tangent kernel of a model with outputs [n, o] between x1 and x2 (None: x1 itself).

    Differentiable with respect to the model's parameters; works under jit. Outputs must not depend on random numbers or
    on other examples: call model.eval() first. The first call for a model's structure compares a random projection of
    the kernel with the model's own derivatives, and falls back to the exact Jacobian, with a warning, if they differ.

    Args:
      model: any NNX module with outputs [n, o].
      x1: n1 examples.
      x2: n2 examples; None: x1.
      tangents: "active" takes derivatives with respect to all parameters of the network as it is, masks included: those
        of pruned weights are zero. "all" takes the derivative of each mask for the identity: the outputs, and the point
        at which derivatives are taken, are the masked network's, but pruned weights count as if they were there. (For
        layers that use their kernel only through its mask this is the kernel of a dense network that has zeros for the
        pruned weights.) Raises if masks are applied to kernels that the forward pass computes, as under
        `nnx.WeightNorm`, where such zeros would change the network.
      outputs: "full" gives [n1, n2, o, o], "trace" its trace over outputs, [n1, n2].
      memory: the number of bytes for intermediate arrays (default: a quarter of the device's memory); the kernel is
        computed in blocks that fit.

    Returns:
      K(x1, x2), in the precision of the model's parameters.

    Raises:
      ModelError: if the model's examples depend on each other, if it cannot be differentiated, or if the kernel is not
        finite.
      ShapeError: if x1 and x2 do not fit each other or the model.

    Example:
      >>> kernel = nttzoo.empirical_ntk(model, images[:32], images[32:64], tangents="active")
    """
    check_model("model", model)
    check_choice("tangents", tangents, ("all", "active"))
    check_choice("outputs", outputs, ("full", "trace"))
    if memory is not None:
        check_count("memory", memory, most=2**63 - 1)
    x1, x2 = check_inputs(model, x1, x2)
    trace, active = outputs == "trace", tangents == "active"
    find_shares = checked_shares(model, x1, active=active)
    kernel = kernel_blocks(model, x1, x2, None, trace=trace, active=active, memory=memory, find_shares=find_shares)
    if not isinstance(kernel, jax.core.Tracer) and not bool(jnp.isfinite(kernel).all()):
        raise ModelError(_where_not_finite(model, x1, x2, active, find_shares))
    return kernel


def outputs_and_kernel(
    model: nnx.Module,
    x: Num[Array, "n ..."],
    chosen: Outputs,
    *,
    active: bool,
    exchange: Exchange | None = None,
    sparse: bool = False,
) -> tuple[Float[Array, "n o"], Float[Array, "n//2 _ r r"]]:
    """The outputs for a batch and the kernel between its halves, from one forward pass if that fits the memory.

    With an `exchange`, the batch and the outputs are one device's part, and so are the kernel's rows; its columns are
    all devices' second halves. `sparse`: the passes skip pruned weights where they can.
    """
    x1, x2 = x[: len(x) // 2], x[len(x) // 2 :]
    find = checked_shares(model, x, active=active)
    if exchange:
        y, kernels = pair_shares(model, x1, x2, chosen, False, active, partial(find, exchange=exchange))
        return y, exchange.own_rows_of_sum(sum(kernels.values()))  # type: ignore[arg-type]
    if len(x) > 2 * block_sizes(model, x1, chosen, active, default_memory(), find).block:
        return nnx.clone(model)(x), kernel_blocks(model, x1, x2, chosen, trace=False, active=active, find_shares=find)
    y, kernels = pair_shares(model, x1, x2, chosen, False, active, partial(find, sparse=sparse))
    return y, sum(kernels.values())  # type: ignore[return-value]


def _where_not_finite(model: nnx.Module, x1: Array, x2: Array, active: bool, find_shares: FindShares) -> str:
    _, kernels = pair_shares(model, x1[:8], x2[:8], None, True, active, find_shares)
    bad = [path_name(path) for path, kernel in kernels.items() if not bool(jnp.isfinite(kernel).all())]
    where = f"the shares of {', '.join(bad)}" if bad else "a layer's share"
    return f"the kernel is not finite: look at {where}; are there NaN or huge values in its weights or in the inputs?"
