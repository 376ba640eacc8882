"""A model's forward pass as a program: where parameters act, and how outputs depend on perturbations there."""

from nttzoo.dataflow.program import Program, Seen, outputs_alone, smallest_batch, trace
from nttzoo.dataflow.sites import Position, Site
from nttzoo.dataflow.structure import Structure, fingerprint, structure

__all__ = [
    "Position",
    "Program",
    "Seen",
    "Site",
    "Structure",
    "fingerprint",
    "outputs_alone",
    "smallest_batch",
    "structure",
    "trace",
]
