"""Peer: milliseconds of one call of DeepSparse on an ONNX file, as JSON. Arguments: file, batch, threads, repeats."""

import json
import os
import sys
import time

os.environ["NM_DISABLE_ANALYTICS"] = "True"

import deepsparse
import numpy as np


def main(path: str, batch: int, threads: int, repeats: int) -> None:
    """Prints {"milliseconds": best of repeats, "version": ...}."""
    engine = deepsparse.Engine(path, batch_size=batch, num_cores=threads)
    shape = tuple(engine.input_shapes[0])
    images = [np.random.default_rng(0).normal(size=shape).astype(np.float32)]
    for _ in range(5):
        engine.run(images)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        engine.run(images)
        times.append(time.perf_counter() - began)
    print(json.dumps({"milliseconds": 1000 * min(times), "version": deepsparse.__version__}))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
