"""gallery.json of an entry: what the gallery shows beyond its metrics."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from nttzoo._util.schema.types import Count, Moderate, Share


class Kernels(Struct):
    """Tangent kernels of teacher and student on a few images, row by row."""

    labels: Annotated[list[Count], Meta(min_length=1, max_length=256)]
    teacher: Annotated[list[Moderate], Meta(max_length=2**16)]
    student: Annotated[list[Moderate], Meta(max_length=2**16)]


class Curve(Struct):
    """A training, epoch by epoch."""

    test_accuracy: Annotated[list[Share], Meta(max_length=10_000)]
    train_loss: Annotated[list[Moderate], Meta(max_length=10_000)]


class Curves(Struct):
    """The training of a student and of a random mask, side by side."""

    student: Curve
    random: Curve


class Pictures(Struct):
    """The file."""

    format: int
    kernels: Kernels | None = None
    curves: Curves | None = None
