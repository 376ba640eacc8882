"""How many steps one call of a compiled loop runs: chunks of about a second."""

from __future__ import annotations

import time

CHUNK_SECONDS = 1.0


class ChunkTimer:
    """Chooses chunks of about CHUNK_SECONDS: long enough to amortize dispatch, short enough for a progress bar."""

    def __init__(self) -> None:
        self.chunk = 1
        self._began = time.perf_counter()

    def begin(self) -> None:
        """Starts timing a chunk."""
        self._began = time.perf_counter()

    def done(self, steps: int) -> None:
        """Ends timing a chunk of this many steps and sets the length of the next one."""
        rate = steps / (time.perf_counter() - self._began)
        # A chunk may have been cut short, and the first one includes compilation: grow at most fourfold.
        self.chunk = max(1, min(int(rate * CHUNK_SECONDS), 4 * max(self.chunk, steps)))
