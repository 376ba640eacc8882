"""Which devices and hosts a search runs on, and how the hosts agree on what to do next."""

from __future__ import annotations

import os

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh

from nttzoo.errors import OptionError
from nttzoo.search import peers

AXIS = "devices"


def make_mesh(devices: int | None, batch_size: int) -> Mesh | None:
    """A mesh over the first `devices` devices of all hosts (None: over all); None if one device is all there is."""
    there = jax.device_count()
    count = there if devices is None else devices
    if not 1 <= count <= there:
        raise OptionError(f"devices is {count}; this run has {there}, so choose 1 to {there}.")
    if jax.process_count() > 1 and count < there:
        raise OptionError(f"on {jax.process_count()} hosts a search uses all {there} devices; leave out --devices.")
    if batch_size % (2 * count):
        below = batch_size // (2 * count) * (2 * count)
        fits = [str(size) for size in (below, below + 2 * count) if size]
        raise OptionError(
            f"a batch of {batch_size} cannot be split evenly: each of its two halves over {count} devices. Sizes that "
            f"fit are multiples of {2 * count}: {' or '.join(fits)}."
        )
    if count == 1:
        return None
    return jax.make_mesh((count,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])


def start_distributed() -> None:
    """Joins the other hosts; on SLURM and TPU pods JAX finds them itself, elsewhere three variables name them."""
    count, own = (os.environ.get(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    try:
        # JAX itself reads only JAX_COORDINATOR_ADDRESS.
        peers.initialize(num_processes=int(count) if count else None, process_id=int(own) if own else None)
    except (RuntimeError, ValueError) as error:
        raise OptionError(
            f"could not join the other hosts: {error}. --distributed is for SLURM jobs, TPU pods, or processes that "
            "are given JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."
        ) from error


def agreed(stop: bool, chunk: int, save: bool) -> tuple[bool, int, bool]:
    """What all hosts do next: stop if any received a signal; chunk length and saving as the first host says."""
    if jax.process_count() == 1:
        return stop, chunk, save
    everyone = multihost_utils.process_allgather(np.array([stop, chunk, save], np.int32))
    return bool(everyone[:, 0].any()), int(everyone[0, 1]), bool(everyone[0, 2])
