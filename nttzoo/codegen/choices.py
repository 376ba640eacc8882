"""`Choices`: the optimizations of the generator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choices:
    """All are on by default (results/bench_codegen.json); turning one off serves to measure its effect."""

    fuse: bool = True  # apply functions and pooling within the layer before them, plane by plane
    trim: bool = True  # skip units that reach no output, or that no input reaches
    tile: bool = True  # large convolutions compute a few rows of all planes at a time
    block: bool = True  # batches run in blocks of examples
