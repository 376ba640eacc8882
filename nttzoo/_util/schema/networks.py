"""Files that describe a saved network."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from nttzoo._util.schema.types import Axis, Count, Densities, Moderate, Name, Seed, Sha256, Text


class Inputs(Struct):
    """What a network's inputs need."""

    input_shape: Annotated[list[Axis], Meta(min_length=1, max_length=4)]
    mean: Annotated[list[Moderate], Meta(min_length=1, max_length=2**16)]
    std: Annotated[list[Annotated[float, Meta(ge=0, le=1e30)]], Meta(min_length=1, max_length=2**16)]
    classes: Annotated[list[Text], Meta(min_length=1, max_length=2**17)]


class Factory(Struct):
    """The code that made a custom network: for people to read, never to be imported."""

    reference: Text
    sha256: Sha256 | None


class NetworkFile(Inputs, kw_only=True):
    """model.json beside the arrays of a network."""

    architecture: Name
    seed: Seed
    factory: Factory | None = None


class StudentFile(NetworkFile, kw_only=True):
    """model.json of a network that a search found."""

    data: Text
    density: Densities
    scheme: Text
    recipe: Text


class SavedFile(Struct, rename={"kind": "class"}):
    """model.json of a model that `nttzoo.save` wrote."""

    kind: Text
    architecture: Name | None
    masked: list[Text]
    variables: dict[Text, tuple[Annotated[list[Count], Meta(max_length=32)], Text]]


class ShapesOnly(Struct):
    """The inputs of a saved network without mean and std."""

    num_classes: Axis
    input_shape: Annotated[list[Axis], Meta(min_length=1, max_length=4)]


class StoredArray(Struct):
    """Metadata of a Zarr array in an Orbax checkpoint, as Orbax writes it."""

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
