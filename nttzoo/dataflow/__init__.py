"""What a model computes, as a program: where its parameters act, and how its outputs depend on what happens there."""

from nttzoo.dataflow.program import Program, Seen, outputs_alone, smallest_batch, trace
from nttzoo.dataflow.sites import Position, Site

__all__ = ["Position", "Program", "Seen", "Site", "outputs_alone", "smallest_batch", "trace"]
