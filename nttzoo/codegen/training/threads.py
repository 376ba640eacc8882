"""The number of threads that share a step: whichever was faster recently."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

FIRST_RETRY, LAST_RETRY = 8, 128


class ThreadChoice:
    """One thread or all: measures both, uses the faster, and measures again from time to time.

    The threads of a step synchronize several times. On a busy machine, all of them wait for one that is not scheduled,
    and a short step is many times faster on one core. Results are bit-identical for any number of threads, so the
    number may change at any time.
    """

    def __init__(self, most: int):
        self._seconds: dict[int, float | None] = dict.fromkeys((most, 1))  # per example, when last tried
        self._calls, self._retry = 0, FIRST_RETRY

    @contextmanager
    def use(self, examples: int) -> Iterator[int]:
        """The number of threads for work on `examples` examples, which is timed."""
        threads = self._next()
        begun = time.perf_counter()
        yield threads
        self._learn(threads, (time.perf_counter() - begun) / max(examples, 1))

    def _fastest(self) -> int:
        return min(self._seconds, key=lambda threads: self._seconds[threads] or 0.0)  # 0: not tried yet

    def _next(self) -> int:
        if self._calls < self._retry:
            return self._fastest()
        return next((threads for threads in self._seconds if threads != self._fastest()), self._fastest())

    def _learn(self, threads: int, seconds: float) -> None:
        before = self._fastest()
        self._seconds[threads] = seconds
        if self._fastest() != before:
            self._calls, self._retry = 0, FIRST_RETRY
        elif self._calls >= self._retry:  # the other number was tried again and is no faster
            self._calls, self._retry = 0, min(2 * self._retry, LAST_RETRY)
        else:
            self._calls += 1
