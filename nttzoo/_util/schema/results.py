"""Files of measurements: comparisons and runtimes."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from nttzoo._util.schema.types import Count, Density, Milliseconds, Name, Seed, Share, Text


class Case(Struct):
    """One trained network of a comparison."""

    method: Text
    seed: Seed
    test_accuracy: Share
    validation_accuracy: Share | None = None
    scheme: Text | None = None
    density: Density | None = None
    kernel_before: float | None = None
    kernel_after: float | None = None
    search_steps: Count | None = None
    origin: Count = 0


class ComparisonSettings(Struct):
    """What a comparison compares."""

    model: Name
    data: Name
    methods: Annotated[list[Text], Meta(min_length=1)]
    densities: Annotated[list[Density], Meta(min_length=1)]
    schemes: Annotated[list[Text], Meta(min_length=1)]
    seeds: Annotated[list[Seed], Meta(min_length=1)]
    train_epochs: Count
    change: dict[str, Any]


class ComparisonFile(Struct):
    """What `nttzoo compare` writes."""

    comparison: ComparisonSettings
    cases: list[Case]
    origins: list[dict[str, Any]] | None = None


class Machine(Struct):
    """The machine of a measurement."""

    processor: Text


class RuntimeCase(Struct):
    """Measured times of one network."""

    name: Text
    architecture: Text
    density: Density
    milliseconds: Milliseconds


class RuntimesFile(Struct):
    """What `nttzoo bench runtime` writes."""

    cases: list[RuntimeCase]
    machine: Machine
    runtimes: dict[str, Any]
