"""Comparisons of methods at equal training: NTT, gradual NTT and the baselines, over densities, schemes and seeds.

A comparison is one JSON file that grows case by case: a killed comparison resumes where it stopped, and methods and
seeds may be added later.
"""

from nttzoo.experiments.comparison.plan import ALIKE, UNIFORM, Comparison, every_method, schemes_of
from nttzoo.experiments.comparison.results import kept_share, layers_table, missing_cases, origin_of, read, table
from nttzoo.experiments.comparison.running import run

__all__ = [
    "ALIKE",
    "UNIFORM",
    "Comparison",
    "every_method",
    "kept_share",
    "layers_table",
    "missing_cases",
    "origin_of",
    "read",
    "run",
    "schemes_of",
    "table",
]
