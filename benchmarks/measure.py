"""Timing side by side: our work and a peer's take turns, so that a noisy machine is unfair to both."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxprs_in_params

from nttzoo.errors import NttzooError
from nttzoo.ops.convolution import conv_p, conv_to_images_p, conv_to_kernel_p

PEERS = Path(__file__).parent / "peers"


class PeerError(NttzooError, RuntimeError):
    """A peer could not be run."""


def milliseconds(work: Callable[[], Any], *, repeats: int = 3, seconds: float = 0.0) -> float:
    """The best of at least `repeats` runs, going on for at least `seconds`, of `work`, which returns when it is done.

    One run before warms up.
    """
    work()
    times: list[float] = []
    while len(times) < repeats or sum(times) < seconds:
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


class Product(NamedTuple):
    """A matrix product: the shapes of its factors, and lax's dimension numbers."""

    one: tuple[int, ...]
    two: tuple[int, ...]
    dimensions: Any

    @property
    def flop(self) -> float:
        """Floating-point operations."""
        (contracted, _), (batch, _) = self.dimensions
        rows = math.prod(size for axis, size in enumerate(self.one) if axis not in (*contracted, *batch))
        return 2 * rows * math.prod(self.two)

    def milliseconds(self) -> float:
        """How long it takes by itself; the cost of calling it is included."""
        run = jax.jit(partial(lax.dot_general, dimension_numbers=self.dimensions))
        factors = [jnp.ones(shape) for shape in (self.one, self.two)]
        return milliseconds(lambda: run(*factors).block_until_ready(), seconds=0.1)


def products_milliseconds(found: Counter[Product]) -> float:
    """How long all these products take, each run by itself, without the cost of calling them."""
    call = Product((1, 1), (1, 1), (((1,), (0,)), ((), ()))).milliseconds()
    return sum(count * max(0.0, product.milliseconds() - call) for product, count in found.items())


def products(function: Callable[..., Any], *arguments: Any) -> Counter[Product]:
    """All matrix products and convolutions of a function (these as products of patches), and how often each is made."""
    return _products(jax.make_jaxpr(function)(*arguments).jaxpr)


def _products(jaxpr: Any) -> Counter[Product]:
    found: Counter[Product] = Counter()
    for equation in jaxpr.eqns:
        times = equation.params.get("length", 1)  # a scan runs its part `length` times
        for part in jaxprs_in_params(equation.params):
            found.update({product: times * count for product, count in _products(part).items()})
        shapes = [var.aval.shape for var in equation.invars]
        if equation.primitive is lax.dot_general_p:
            found[Product(shapes[0], shapes[1], equation.params["dimension_numbers"])] += 1
        elif equation.primitive in (conv_p, conv_to_images_p, conv_to_kernel_p):
            window, n = equation.params["window"], shapes[0][0]
            kernel = equation.outvars[0].aval.shape if equation.primitive is conv_to_kernel_p else shapes[1]
            positions, outputs = n * math.prod(window.out), kernel[-1] // window.groups
            patches, weights, results = (
                (window.groups, *shape)
                for shape in (
                    (positions, math.prod(kernel[:-1])),
                    (math.prod(kernel[:-1]), outputs),
                    (positions, outputs),
                )
            )
            of_each_group = ((0,), (0,))
            if equation.primitive is conv_p:
                found[Product(patches, weights, (((2,), (1,)), of_each_group))] += 1
            elif equation.primitive is conv_to_images_p:
                found[Product(results, weights, (((2,), (2,)), of_each_group))] += 1
            else:
                found[Product(results, patches, (((1,), (1,)), of_each_group))] += 1
    return found


def alone(function: Callable[..., Any], *arguments: object, devices: int = 1) -> Any:
    """What a function of a module gives in a process of its own, with peak memory and simulated devices of its own."""
    code = (
        f"import json, {function.__module__} as module; print(json.dumps(module.{function.__name__}(*{arguments!r})))"
    )
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}".strip()
    environment = {**os.environ, **({"XLA_FLAGS": flags} if devices > 1 else {})}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.strip().splitlines()[-1])


def run_peer(script: str, *arguments: str, python: str, timeout: float = 900) -> dict[str, Any]:
    """Runs bench/peers/<script>.py with another environment's Python; it prints one line of JSON."""
    command = [python, str(PEERS / f"{script}.py"), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=True)
    except FileNotFoundError as error:
        raise PeerError(f"there is no Python at {python!r}: name the peer's environment with --peer-python.") from error
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"peer {script!r} {' '.join(arguments)} took longer than {timeout:.0f} s.") from error
    except subprocess.CalledProcessError as error:
        raise PeerError(f"peer {script!r} failed in {python!r}: {error.stderr.strip()[-500:]}") from error
    return json.loads(done.stdout.strip().splitlines()[-1])
