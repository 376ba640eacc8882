"""Schemas of the JSON files, and reading them: one place for all checks of fields and types.

Fields that a schema does not name are kept and not checked: later versions may add some. JSON itself has no NaN, and
numbers beyond its range are refused, so every number is finite.
"""

from nttzoo._util.schema.entries import (
    Chosen,
    Compared,
    Cost,
    File,
    Index,
    Layer,
    Listed,
    Manifest,
    Metrics,
    RecipePart,
    Runtimes,
    SingleThread,
    Sizes,
    Speedup,
    Times,
    TrainPart,
    TwoThreads,
)
from nttzoo._util.schema.networks import Inputs, NetworkFile, SavedFile, ShapesOnly, StoredArray, StudentFile
from nttzoo._util.schema.pictures import Pictures
from nttzoo._util.schema.results import Case, ComparisonFile, ComparisonSettings, Machine, RuntimeCase, RuntimesFile
from nttzoo._util.schema.types import (
    NAME,
    Axis,
    Count,
    Density,
    Milliseconds,
    Moderate,
    Name,
    Seed,
    Sha256,
    Share,
    Text,
)
from nttzoo._util.schema.validation import read, validate

__all__ = [
    "ComparisonSettings",
    "Axis",
    "Case",
    "Chosen",
    "Compared",
    "ComparisonFile",
    "Cost",
    "Count",
    "Density",
    "File",
    "Index",
    "Inputs",
    "Layer",
    "Listed",
    "Machine",
    "Manifest",
    "Metrics",
    "Milliseconds",
    "Moderate",
    "NAME",
    "Name",
    "NetworkFile",
    "Pictures",
    "RecipePart",
    "RuntimeCase",
    "Runtimes",
    "RuntimesFile",
    "SavedFile",
    "Seed",
    "Sha256",
    "ShapesOnly",
    "Share",
    "SingleThread",
    "Sizes",
    "Speedup",
    "StoredArray",
    "StudentFile",
    "Text",
    "Times",
    "TrainPart",
    "TwoThreads",
    "read",
    "validate",
]
