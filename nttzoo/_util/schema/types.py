"""Numbers, names and texts as files may hold them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

# Names become parts of paths: no slash, no leading dot.
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.+=-]{0,199}\Z"
Name = Annotated[str, Meta(pattern=NAME)]
Text = Annotated[str, Meta(max_length=10_000)]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Count = Annotated[int, Meta(ge=0, le=2**53)]
Seed = Annotated[int, Meta(ge=0, lt=2**32)]
Density = Annotated[float, Meta(gt=0, le=1)]
Densities = Density | dict[Text, Density]  # one for all layers, or one per glob
Share = Annotated[float, Meta(ge=0, le=1)]
Moderate = Annotated[float, Meta(ge=-1e30, le=1e30)]
Axis = Annotated[int, Meta(ge=1, le=2**16)]
Milliseconds = dict[str, dict[str, dict[str, Annotated[float, Meta(ge=0)]]]]  # by batch, threads and runtime
