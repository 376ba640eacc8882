"""Linearized training in closed form: outputs under gradient descent with a constant tangent kernel.

For the squared loss L = 1/2 sum over examples and outputs of (f - y)^2. With the kernel H between all (example, output)
pairs of the training set, gradient flow gives f(t) = y + exp(-t H) (f(0) - y); gradient descent with step eta gives
f(k) = y + (I - eta H)^k (f(0) - y). Use kernels with `tangents="active"`: only surviving weights are trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from nttzoo._util.checks import check_array, check_finite, check_number
from nttzoo.errors import ShapeError


def gradient_flow(
    kernel: Float[Array, "n n o o"],
    start: Float[Array, "n o"],
    targets: Float[Array, "n o"],
    times: Float[Array, " t"],
    *,
    test_kernel: Float[Array, "m n o o"] | None = None,
    test_start: Float[Array, "m o"] | None = None,
) -> Float[Array, "t n o"] | Float[Array, "t m o"]:
    """Outputs of the linearized network at the given times of continuous gradient flow.

    Args:
      kernel: K(train, train).
      start: outputs on the training points at time 0.
      targets: of the training points.
      times: t points in time.
      test_kernel: K(test, train), for outputs on test points.
      test_start: outputs on the test points at time 0.

    Returns:
      Outputs on the training points, or on the test points if these are given.

    Raises:
      ShapeError: if the arrays do not fit each other.

    Example:
      >>> kernel = nttzoo.empirical_ntk(model, x, tangents="active")
      >>> outputs = nttzoo.dynamics.gradient_flow(kernel, model(x), targets, jnp.array([0.0, 1.0, 10.0]))
    """
    times = _row("times", times)
    return _trajectory(
        kernel, start, targets, lambda w: jnp.exp(-times.astype(w.dtype)[:, None] * w[None]), test_kernel, test_start
    )


def gradient_descent(
    kernel: Float[Array, "n n o o"],
    start: Float[Array, "n o"],
    targets: Float[Array, "n o"],
    steps: Array,
    *,
    learning_rate: float,
    test_kernel: Float[Array, "m n o o"] | None = None,
    test_start: Float[Array, "m o"] | None = None,
) -> Float[Array, "t n o"] | Float[Array, "t m o"]:
    """Outputs of the linearized network after the given numbers of steps of full-batch gradient descent.

    Args:
      kernel: K(train, train).
      start: outputs on the training points before the first step.
      targets: of the training points.
      steps: t numbers of steps.
      learning_rate: positive.
      test_kernel: K(test, train), for outputs on test points.
      test_start: outputs on the test points before the first step.

    Returns:
      Outputs on the training points, or on the test points if these are given.

    Raises:
      ShapeError: if the arrays do not fit each other.
      OptionError: if the learning rate is not positive.

    Example:
      >>> outputs = nttzoo.dynamics.gradient_descent(kernel, model(x), targets, jnp.arange(10), learning_rate=0.01)
    """
    check_number("learning_rate", learning_rate, "positive", 0)
    counts = _row("steps", steps)

    def decay(w: Array) -> Array:
        return (1 - learning_rate * w)[None] ** counts[:, None]

    return _trajectory(kernel, start, targets, decay, test_kernel, test_start)


def _row(name: str, value: Any) -> Array:
    """An array [t] of finite numbers."""
    check_array(name, value)
    row = jnp.asarray(value)
    if row.ndim != 1:
        raise ShapeError(f"{name} must be an array [t]; got {list(row.shape)}.")
    check_finite(name, row)
    return row


def _trajectory(
    kernel: Array,
    start: Array,
    targets: Array,
    decay: Callable[[Array], Array],
    test_kernel: Array | None,
    test_start: Array | None,
) -> Array:
    """`decay(eigenvalues [d]) -> [t, d]` says how much of the error along each eigenvector is left."""
    given = {"kernel": kernel, "start": start, "targets": targets}
    test = {"test_kernel": test_kernel, "test_start": test_start}
    for name, value in (given | {name: value for name, value in test.items() if value is not None}).items():
        check_array(name, value)
    kernel, start, targets = (jnp.asarray(value) for value in (kernel, start, targets))
    if start.ndim != 2:
        raise ShapeError(f"start has shape {list(start.shape)}; outputs are [n, o].")
    n, o = start.shape
    if kernel.shape != (n, n, o, o) or targets.shape != (n, o):
        raise ShapeError(
            f"start [{n}, {o}] needs a kernel [{n}, {n}, {o}, {o}] and targets [{n}, {o}]; "
            f"got {list(kernel.shape)} and {list(targets.shape)}."
        )
    values, vectors = jnp.linalg.eigh(_matrix(kernel))
    values = jnp.maximum(values, 0)  # the kernel is positive semidefinite; rounding is not
    error = vectors.T @ (start - targets).reshape(-1)
    left = decay(values)
    if test_kernel is None and test_start is None:
        return targets[None] + ((left * error[None]) @ vectors.T).reshape(-1, n, o)
    shapes = [None if value is None else jnp.asarray(value).shape for value in (test_kernel, test_start)]
    if test_kernel is None or test_start is None or shapes != [(len(test_start), n, o, o), (len(test_start), o)]:
        raise ShapeError(
            f"test points need test_start [m, {o}] and test_kernel [m, {n}, {o}, {o}] = K(test, train); got kernel "
            f"{shapes[0]} and outputs {shapes[1]}."
        )
    test_kernel, test_start = jnp.asarray(test_kernel), jnp.asarray(test_start)
    # f(x, t) = f(x, 0) - K(x, X) H^-1 (I - decay) (f(0) - y); where H has no rank, nothing moves.
    moving = values > values[-1] * jnp.finfo(values.dtype).eps * len(values)
    gone = jnp.where(moving[None], (1 - left) / jnp.where(moving, values, 1)[None], 0)
    moved = (gone * error[None]) @ vectors.T @ _matrix(test_kernel).T
    return test_start[None] - moved.reshape(-1, *test_start.shape)


def _matrix(kernel: Float[Array, "n m o o"]) -> Float[Array, "n*o m*o"]:
    n, m, o, _ = kernel.shape
    return kernel.transpose(0, 2, 1, 3).reshape(n * o, m * o)
