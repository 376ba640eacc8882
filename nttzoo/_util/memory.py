"""How much memory is available, and returning what is no longer used."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import jax
import psutil

_GROUPS = Path("/sys/fs/cgroup")


def device_memory() -> int:
    """Bytes of the device that computations run on; on the CPU what this process may take of the machine's."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return statistics.get("bytes_limit") or min([psutil.virtual_memory().total, *_limits()])


def release() -> None:
    """Returns freed memory to the system where the C library can: glibc keeps fragments of it for every thread."""
    trim = None
    with suppress(OSError, TypeError):  # TypeError: Windows has no library of that name
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _limits(groups: Path = _GROUPS, membership: Path = Path("/proc/self/cgroup")) -> list[int]:
    """The limits that containers and batch systems set on Linux: those of the process's control group and above it.

    A line of `membership` is "0::/job/step" (version 2), or "4:memory:/job/step" (version 1).
    """
    found = []
    for line in membership.read_text().splitlines() if membership.exists() else ():
        _, controllers, place = line.split(":", 2)
        if controllers not in ("", "memory"):
            continue
        root = groups / controllers
        folder = root / place.strip("/")
        # Inside a container the place may be named as the host sees it: then only the root is there.
        for group in (folder, *folder.parents):
            for name in ("memory.max", "memory.limit_in_bytes"):
                text = (group / name).read_text().strip() if (group / name).is_file() else "max"
                found += [int(text)] if text.isdigit() else []
            if group == root:
                break
    return found
