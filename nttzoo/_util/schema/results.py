"""Files of measurements: comparisons, runtimes, results of cases, summaries of searches, states of trainings."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from nttzoo._util.schema.entries import Layer
from nttzoo._util.schema.types import Count, Densities, Density, Milliseconds, Moderate, Name, Seed, Share, Text


class Case(Struct):
    """One trained network of a comparison."""

    method: Text
    seed: Seed
    test_accuracy: Share
    validation_accuracy: Share | None = None
    scheme: Text | None = None
    density: Densities | None = None
    layers: list[Layer] | None = None
    kernel_before: float | None = None
    kernel_after: float | None = None
    search_steps: Count | None = None
    origin: Count = 0


class ComparisonSettings(Struct):
    """What a comparison compares."""

    model: Name
    data: Name
    methods: Annotated[list[Text], Meta(min_length=1)]
    densities: Annotated[list[Densities], Meta(min_length=1)]
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


class TrajectoriesFile(Struct):
    """What `nttzoo visualize` and `nttzoo reproduce dynamics` write."""

    class Followed(Struct):
        """One student's search."""

        kernel_before: Moderate
        kernel_after: Moderate

    model: Name
    steps: Count
    students: dict[Text, Followed]
    mean_distance_from_teacher: dict[Text, Moderate]
    steps_to_learn: dict[Text, Count | None]
    final_loss: dict[Text, Moderate]


class CaseKey(Struct):
    """Which network a result is of."""

    class Training(Struct):
        """How it was trained."""

        epochs: Count
        dropout: bool

    model: Name
    data: Name
    method: Text
    density: Density
    scheme: Text
    seed: Seed
    control: Text
    change: dict[str, Any]
    training: Training


class Student(Struct):
    """The search behind a result."""

    steps: Count
    kernel_before: float
    kernel_after: float


class Total(Struct):
    """Multiply-adds of a whole network."""

    dense: Count
    sparse: Count


class Costs(Struct):
    """What sparsity could save in a network."""

    total: Total
    theoretical: float


class Epochs(Struct):
    """What happened in each epoch of a training."""

    train_loss: list[float | None]
    train_accuracy: list[float | None]
    validation_accuracy: list[float | None]
    test_accuracy: list[float | None]
    seconds: list[float]
    engine: Text
    engine_note: Text


class ResultFile(Struct):
    """What `nttzoo reproduce` writes of a case."""

    case: CaseKey
    test_accuracy: Share
    student: Student | None
    layers: list[Layer]
    speedup: Costs
    history: Epochs
    date: Text
    machine: dict[str, Any]


class Searched(Struct):
    """What a search records about a student."""

    class Speedup(Struct):
        """What its sparsity could save."""

        theoretical: float

    kernel_before: float
    kernel_after: float
    target_after: float
    density: Annotated[list[Layer], Meta(min_length=1)]
    speedup: Speedup


class SummaryFile(Struct):
    """summary.json in the folder of a search."""

    class Config(Struct):
        """What was searched for."""

        model: Name
        data: Text

    config: Config
    steps: Count
    students: Annotated[dict[Text, Searched], Meta(min_length=1)]


class EngineTimes(Struct):
    """How long a step of a training takes in each engine."""

    c: Annotated[float, Meta(gt=0)]  # milliseconds
    jax: Annotated[float, Meta(gt=0)]


class TrainingFile(Struct):
    """training.json in the checkpoint of a training."""

    config: dict[str, Any]
    data: dict[str, Any]
    start: Text
    history: Epochs
