"""Files of the zoo: manifests, the index, an entry's metrics."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from nttzoo._util.schema.networks import Factory, Inputs
from nttzoo._util.schema.types import Count, Density, Name, Seed, Sha256, Share, Text


class File(Struct):
    """One file of a manifest."""

    size: Count
    sha256: Sha256


class Manifest(Struct):
    """The files of an entry."""

    format: int
    name: Name
    files: dict[str, File]


class Listed(Struct):
    """An entry in the index."""

    manifest_sha256: Sha256
    architecture: Name
    dataset: Name
    density: Density
    scheme: Text


class Index(Struct):
    """models/index.json."""

    format: int
    entries: dict[Name, Listed]


class Chosen(Struct):
    """Accuracy of an entry."""

    test_accuracy: Share
    validation_accuracy: Share


class Compared(Struct):
    """One method of a comparison."""

    method: Text
    scheme: Text
    test_accuracy: Annotated[list[Share], Meta(min_length=1)]


class Layer(Struct):
    """Number of weights of a layer."""

    name: Text
    size: Annotated[int, Meta(ge=1, le=2**53)]
    kept: Count


class Cost(Struct):
    """Multiply-adds of a layer."""

    name: Text
    dense: Count
    sparse: Count


class Speedup(Struct):
    """Theoretical speedup."""

    layers: list[Cost]
    total: Cost
    theoretical: float
    without_dead: float


class RecipePart(Struct):
    """The search, as a card shows it."""

    name: Text
    epochs: Count
    outputs: Count | None


class TrainPart(Struct):
    """The training, as a card shows it."""

    epochs: Count
    dropout: bool


class Sizes(Struct):
    """Memory of a network as C."""

    table_bytes: Count
    arena_bytes: Count
    dense_table_bytes: Count
    dense_arena_bytes: Count
    images: Count
    difference: float


class SingleThread(Struct, rename={"one": "1"}):
    """By runtime, on one thread."""

    one: dict[str, Annotated[float, Meta(ge=0)]]


class TwoThreads(Struct, rename={"two": "2"}):
    """By runtime, on two threads."""

    two: dict[str, Annotated[float, Meta(ge=0)]]


class Times(Struct, rename={"single": "1", "many": "64"}):
    """Milliseconds for one image and for 64."""

    single: SingleThread
    many: TwoThreads


class Runtimes(Struct):
    """Measured times of an entry."""

    own: Times
    dense: Times
    machine: Text


class Metrics(Inputs):
    """metrics.json of an entry."""

    format: int
    name: Name
    architecture: Name
    dataset: Name
    density: Density
    scheme: Text
    recipe: RecipePart
    seed: Seed
    search_steps: Count
    train: TrainPart
    kernel_before: float
    kernel_after: float
    chosen: Chosen
    compared: Annotated[list[Compared], Meta(max_length=1000)]
    layers: Annotated[list[Layer], Meta(max_length=10_000)]
    speedup: Speedup
    licence: Text
    command: Text
    c: Sizes
    runtimes: Runtimes | None = None
    factory: Factory | None = None
    densities: dict[Text, Density] | None = None  # by layer
    exclude: list[Text] | None = None
