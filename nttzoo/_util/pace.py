"""How many steps to run before looking up: compiled loops run in chunks of about a second."""

from __future__ import annotations

import time

CHUNK_SECONDS = 1.0


class Pace:
    """Chunks as long as CHUNK_SECONDS keep a progress bar moving and the loop in compiled code."""

    def __init__(self) -> None:
        self.chunk = 1
        self._began = time.perf_counter()

    def begin(self) -> None:
        """A chunk begins now."""
        self._began = time.perf_counter()

    def done(self, steps: int) -> None:
        """The chunk that began last had this many steps; the next one may be longer."""
        rate = steps / (time.perf_counter() - self._began)
        # A chunk may have been cut short, and the first one compiles: grow by and by.
        self.chunk = max(1, min(int(rate * CHUNK_SECONDS), 4 * max(self.chunk, steps)))
