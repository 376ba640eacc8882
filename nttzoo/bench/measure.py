"""Timing side by side: our work and a peer's take turns, so that a noisy machine is unfair to both."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import jaxprs_in_params

from nttzoo.convolution import conv_p, conv_to_images_p, conv_to_kernel_p
from nttzoo.errors import NttzooError

PEERS = Path(__file__).parent / "peers"


class PeerError(NttzooError, RuntimeError):
    """A peer could not be run."""


def milliseconds(work: Callable[[], Any], *, repeats: int) -> float:
    """The best of `repeats` runs of `work`, which must return only when it is done; one run before warms up."""
    work()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return 1000 * min(times)


def gigaflop(function: Callable[..., Any], *arguments: Any) -> float:
    """Floating-point operations of all matrix products and convolutions of a function, in units of 10^9."""
    return _flop(jax.make_jaxpr(function)(*arguments).jaxpr) / 1e9


def _flop(jaxpr: Any) -> float:
    total = 0.0
    for equation in jaxpr.eqns:
        inner = [_flop(part) for part in jaxprs_in_params(equation.params)]
        total += equation.params.get("length", 1) * sum(inner)  # a scan runs its part `length` times
        shapes = [var.aval.shape for var in equation.invars]
        if equation.primitive is lax.dot_general_p:
            (contracted, _), _ = equation.params["dimension_numbers"]
            along = math.prod(shapes[0][axis] for axis in contracted)
            total += 2 * math.prod(equation.outvars[0].aval.shape) * along
        elif equation.primitive in (conv_p, conv_to_images_p, conv_to_kernel_p):
            kernel = equation.outvars[0].aval.shape if equation.primitive is conv_to_kernel_p else shapes[1]
            total += 2 * shapes[0][0] * math.prod(equation.params["window"].out) * math.prod(kernel)
    return total


def gigaflop_per_second() -> float:
    """The speed of a large matrix product on this machine: a limit for everything made of smaller ones."""
    x = jnp.ones((2048, 2048))
    square = jax.jit(jnp.matmul)
    return 2 * len(x) ** 3 / 1e6 / milliseconds(lambda: square(x, x).block_until_ready(), repeats=10)


def alone(function: Callable[..., Any], *arguments: object, devices: int = 1) -> Any:
    """What a function of a module gives in a process of its own, with peak memory and pretended devices of its own."""
    code = f"import json, {function.__module__} as room; print(json.dumps(room.{function.__name__}(*{arguments!r})))"
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
