"""`Choices`: the optimizations of the generator."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choices:
    """All are on by default (results/bench_codegen.json); turning one off serves to measure its effect."""

    fuse: bool = True  # functions and pooling are done by the layer before them, plane by plane
    trim: bool = True  # units that reach no output, or that no input reaches, are not computed
    tile: bool = True  # large convolutions make a few rows of all planes at a time
    block: bool = True  # batches are done many examples side by side
