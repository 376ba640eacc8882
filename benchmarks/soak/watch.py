"""Memory, open files and threads of a search, from its start to its end."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

SAMPLE_SECONDS = 10.0


class Watch:
    """A search that runs, and is looked at, as long as the context lasts."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._samples: list[dict[str, float]] = []
        self._over = threading.Event()

    def __enter__(self) -> Watch:
        command = [sys.executable, "scripts/search.py", "--epochs", "10000", "--save-every", "5"]
        self._process = subprocess.Popen(
            [*command, "--out", str(self._folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.stop()

    def stop(self) -> dict[str, Any]:
        """Asks the search to stop; returns its exit code (143: it saved its state and stopped) and the samples."""
        self._over.set()
        self._thread.join()
        self._process.terminate()
        code = self._process.wait()
        saved = [int(path.name) for path in (self._folder / "checkpoints").glob("[0-9]*") if path.name.isdigit()]
        return {"exit_code": code, "steps": max(saved, default=0), "samples": self._samples}

    def _look(self) -> None:
        begun, process = time.monotonic(), psutil.Process(self._process.pid)
        while not self._over.wait(SAMPLE_SECONDS):
            try:
                self._samples.append(
                    {
                        "minutes": round((time.monotonic() - begun) / 60, 1),
                        "memory_mib": round(process.memory_info().rss / 2**20),
                        "open_files": process.num_fds(),
                        "threads": process.num_threads(),
                    }
                )
            except psutil.Error:
                return
