"""What the JSON files of nttzoo look like, and reading them: one place for all checks of fields and types.

Fields that a schema does not name are kept and not checked: later versions may add some. JSON itself has no NaN, and
numbers beyond its range are refused, so every number is finite.
"""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from nttzoo._util import files
from nttzoo.errors import FileError

# Names become parts of paths: no slash, no leading dot.
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.+=-]{0,199}$"

Name = Annotated[str, Meta(pattern=NAME)]
Text = Annotated[str, Meta(max_length=10_000)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Seed = Annotated[int, Meta(ge=0, lt=2**32)]
Density = Annotated[float, Meta(gt=0, le=1)]
Share = Annotated[float, Meta(ge=0, le=1)]
Moderate = Annotated[float, Meta(ge=-1e30, le=1e30)]
Axis = Annotated[int, Meta(ge=1, le=2**16)]
Milliseconds = dict[str, dict[str, dict[str, Annotated[float, Meta(ge=0)]]]]  # by batch, threads and runtime


class Inputs(Struct):
    """What a network's inputs need."""

    input_shape: Annotated[list[Axis], Meta(min_length=1, max_length=4)]
    mean: Annotated[list[Moderate], Meta(min_length=1, max_length=2**16)]
    std: Annotated[list[Annotated[float, Meta(ge=0, le=1e30)]], Meta(min_length=1, max_length=2**16)]
    classes: Annotated[list[Text], Meta(min_length=1, max_length=2**17)]


class NetworkFile(Inputs):
    """model.json beside the arrays of a network."""

    architecture: Name
    seed: Seed


class StudentFile(NetworkFile):
    """model.json of a network that a search found."""

    data: Text
    density: Density
    scheme: Text
    recipe: Text


class SavedFile(Struct, rename={"kind": "class"}):
    """model.json of a model that `nttzoo.save` wrote."""

    kind: Text
    architecture: Name | None
    masked: list[Text]
    variables: dict[Text, tuple[Annotated[list[Count], Meta(max_length=32)], Text]]


class ShapesOnly(Struct):
    """What is known of a saved network's inputs if it has no mean and std."""

    num_classes: Axis
    input_shape: Annotated[list[Axis], Meta(min_length=1, max_length=4)]


class StoredArray(Struct):
    """What a Zarr array in an Orbax checkpoint says of itself, as Orbax writes it."""

    class Compressor(Struct, forbid_unknown_fields=True):
        """How the array is compressed."""

        id: Literal["zstd"]
        level: int

    shape: Annotated[list[Count], Meta(max_length=32)]
    chunks: Annotated[list[Count], Meta(max_length=32)]
    dtype: Annotated[str, Meta(max_length=16)]
    compressor: Compressor
    order: Literal["C"]
    zarr_format: Literal[2]
    filters: None
    fill_value: None = None
    dimension_separator: Literal["."] = "."


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
    """What the index says of an entry."""

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
    """How well an entry does."""

    test_accuracy: Share
    validation_accuracy: Share


class Compared(Struct):
    """One method of a comparison."""

    method: Text
    scheme: Text
    test_accuracy: Annotated[list[Share], Meta(min_length=1)]


class Layer(Struct):
    """How many weights a layer has."""

    name: Text
    size: Annotated[int, Meta(ge=1, le=2**53)]
    kept: Count


class Cost(Struct):
    """Multiply-adds of a layer."""

    name: Text
    dense: Count
    sparse: Count


class Speedup(Struct):
    """What sparsity could save."""

    layers: list[Cost]
    total: Cost
    theoretical: float
    without_dead: float


class RecipePart(Struct):
    """What a card tells of the search."""

    name: Text
    epochs: Count
    outputs: Count | None


class TrainPart(Struct):
    """What a card tells of the training."""

    epochs: Count
    dropout: bool


class Sizes(Struct):
    """What a network takes as C."""

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


class Asked(Struct):
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

    comparison: Asked
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


def read(path: str | os.PathLike[str], kind: type[Struct], *, what: str = "") -> Any:
    """The content of a JSON file, as dictionaries and lists, if it has the fields and types of `kind`.

    Args:
      path: a regular file of at most `files.TEXT_LIMIT` bytes.
      kind: one of the schemas above.
      what: what the file should be, for the message.

    Raises:
      FileError: with the file's name and the field that is wrong.
    """
    return validate(path, files.read_json(path), kind, what=what)


def validate(path: str | os.PathLike[str], content: Any, kind: type[Struct], *, what: str = "") -> Any:
    """The content, if it has the fields and types of `kind`."""
    try:
        msgspec.convert(content, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        reason = str(error).replace("Object missing required field ", "it does not tell ").replace("`", "'")
        raise FileError(path, f"is not {what or 'what it should be'}: {reason}") from error
    return content
