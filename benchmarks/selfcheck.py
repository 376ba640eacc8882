"""What the kernel's check of itself adds to a search: its seconds, once per search."""

from __future__ import annotations

import time
from typing import Any

import jax

from nttzoo import architectures
from nttzoo._util.provenance import origin
from nttzoo.ntk import selfcheck


def run() -> dict[str, Any]:
    """Seconds of the check for the paper's networks, compilation included: by the clock, and of all cores in sum."""
    found = {}
    for name in ("lenet300", "lenet5", "conv4"):
        model = architectures.create(name, rngs=0)
        model.eval()
        x = jax.random.normal(jax.random.key(0), (2, *model.input_shape))
        jax.clear_caches()
        selfcheck.forget()
        began, busy = time.perf_counter(), time.process_time()
        selfcheck.checked_shares(model, x, active=False)
        seconds = time.perf_counter() - began, time.process_time() - busy
        found[name] = dict(zip(("seconds", "cpu_seconds"), (round(value, 2) for value in seconds), strict=True))
    return {
        "what": "what a search spends once on checking its kernel, compilation included",
        "networks": found,
        **origin(),
    }
