"""Custom data sets: an .npz file, a folder of images per class, or a function that returns arrays."""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nttzoo._util.references import Named, is_reference, plain_name, resolve
from nttzoo.data.dataset import ARRAYS, Dataset, from_arrays, validated
from nttzoo.data.sources import SOURCES, Source, read_npz
from nttzoo.errors import DataError, NttzooError, OptionError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".webp")
HELD_OUT = 6  # of a folder without a test set, every sixth image of each class


def is_own(text: str) -> bool:
    """Whether a text names custom data, not one of nttzoo's data sets."""
    return text not in SOURCES and (is_reference(text) or text.endswith(".npz") or Path(text).is_dir())


def register(text: str) -> str:
    """Registers a file, folder or function as a data set and returns its name, for this process only.

    Args:
      text: "my.npz" (arrays as for `data.from_arrays`, and optionally classes); a folder with one folder of
        images per class, or two such folders called train and test; or "package.module:function" or "file.py:function",
        which returns a `Dataset`, the four arrays in this order, or a dictionary of them. Only for what a person typed:
        a function's module is imported.

    Returns:
      The name, for `data.load`.

    Raises:
      OptionError: if it does not exist, or nttzoo has a data set of this name.
      DataError, ShapeError: if it does not hold images and labels.

    Example:
      >>> name = data.own.register("photos/")
      >>> photos = data.load(name)
    """
    read: Callable[[str], Dataset]
    if is_reference(text):
        named = resolve(text, "--data")
        name, read = named.name, lambda name: _called(named, name)
    elif text.endswith(".npz"):
        if not Path(text).is_file():
            raise OptionError(f"--data: there is no file {text}.")
        name, read = plain_name(Path(text).stem), lambda name: _from_npz(Path(text), name)
    elif Path(text).is_dir():
        name, read = plain_name(Path(text).resolve().name), lambda name: from_folder(text, name=name)
    else:
        raise OptionError(f"--data: {text} is neither an .npz file nor a folder of images nor module:function.")
    if name in SOURCES and SOURCES[name].dataset is None:
        raise OptionError(f"--data {text}: {name!r} is a data set of nttzoo. Give yours another name.")
    dataset = read(name)
    _check_classes(dataset, text)
    shape = tuple(dataset.input_shape)
    SOURCES.replace(name, Source("", shape, dataset.classes, dataset.license, dataset=dataset, reference=text))
    return name


def about(name: str) -> dict[str, str]:
    """What a run should say of its data set: a hash of custom data, nothing for a data set of nttzoo."""
    source = SOURCES.get(name)
    if source is None or source.dataset is None:
        return {}
    found = hashlib.sha256()
    for part in (source.dataset.train, source.dataset.test):
        for array in (part.images, part.labels):
            found.update(f"{array.dtype}{array.shape}".encode())
            found.update(np.ascontiguousarray(array).data)
    return {"data_sha256": found.hexdigest()}


def from_folder(folder: str | Path, *, name: str | None = None) -> Dataset:
    """Makes a data set from a folder with one subfolder of images per class, named like the class.

    All images must have one size; they are gray if all files are, else RGB. If the folder holds `train` and `test`,
    each with the class folders, these are the two sets; otherwise every sixth image of each class, sorted by
    name, is for testing.

    Args:
      folder: where the images are.
      name: of the data set (default: the folder's).

    Returns:
      Images and labels, for training and for testing.

    Raises:
      DataError: if there are no images, sizes differ, or a file is not an image.

    Example:
      >>> photos = data.own.from_folder("photos")
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"there is no folder {root}.")
    split = (root / "train").is_dir() and (root / "test").is_dir()
    parts = {part: _files(root / part) if split else _files(root) for part in ("train", "test")}
    classes = tuple(parts["train"])
    if split and (extra := sorted(set(parts["test"]) - set(classes))):
        raise DataError(f"{root / 'test'} has classes that {root / 'train'} does not have: {', '.join(extra)}.")
    if not split:
        for part in parts:
            parts[part] = {
                label: [file for i, file in enumerate(files) if (i % HELD_OUT == HELD_OUT - 1) == (part == "test")]
                for label, files in parts[part].items()
            }
        if few := [label for label, files in parts["test"].items() if not files]:
            raise DataError(
                f"{', '.join(few)} of {root}: fewer than {HELD_OUT} images, so that none is left for testing. Add "
                "images, or make two folders, train and test, with the classes in each."
            )
    channels = (
        1 if all(_mode(file) in ("1", "L") for part in parts.values() for f in part.values() for file in f) else 3
    )
    arrays: dict[str, np.ndarray] = {}
    shape: tuple[int, ...] | None = None
    for part, by_class in parts.items():
        images, labels = [], []
        for label, files in by_class.items():
            for file in files:
                image = _image(file, channels)
                shape = shape or image.shape
                if image.shape != shape:
                    raise DataError(
                        f"{file} is {image.shape[0]} x {image.shape[1]} pixels, the images before it are {shape[0]} x "
                        f"{shape[1]}. All images must have one size: resize or crop them first."
                    )
                images.append(image)
                labels.append(classes.index(label))
        arrays |= {f"x_{part}": np.stack(images), f"y_{part}": np.array(labels, np.int32)}
    return from_arrays(*(arrays[key] for key in ARRAYS), name=name or plain_name(root.resolve().name), classes=classes)


def _files(folder: Path) -> dict[str, list[Path]]:
    """{class: its images}, both sorted by name."""
    folders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    found = {path.name: sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS) for path in folders}
    if not found or (empty := [label for label, files in found.items() if not files]):
        what = f"no images in {', '.join(empty)}" if found else "no folders"
        raise DataError(f"{folder} has {what}: one folder of images ({', '.join(ENDINGS)}) per class is expected.")
    return found


def _mode(file: Path) -> str:
    from PIL import Image

    try:
        with Image.open(file) as image:
            return image.mode
    except OSError as error:
        raise DataError(f"{file} cannot be read as an image: {error}.") from error


def _image(file: Path, channels: int) -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(file) as image:
            pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
    except (OSError, SyntaxError) as error:
        raise DataError(f"{file} cannot be read as an image: {error}.") from error
    return pixels.reshape(*pixels.shape[:2], channels)


def _check_classes(dataset: Dataset, text: str) -> None:
    if dataset.num_classes < 2:
        raise DataError(f"--data {text}: all labels are 0, so that there is nothing to tell apart.")
    counts = np.bincount(dataset.train.labels, minlength=dataset.num_classes)
    if not counts.all():
        missing = ", ".join(dataset.classes[i] for i in np.flatnonzero(counts == 0))
        warnings.warn(
            f"{text} has no training image of class {missing}: labels count from 0 to the number of classes - 1.",
            stacklevel=3,
        )


def _from_npz(path: Path, name: str) -> Dataset:
    arrays = read_npz(path, optional=("classes",))
    return _from_dict(arrays, name, str(path))


def _called(named: Named, name: str) -> Dataset:
    reference = named.reference
    try:
        inspect.signature(named.value).bind()
    except (TypeError, ValueError) as error:
        raise DataError(f"{reference} is called without arguments: {error}.") from error
    try:
        found = named.value()
    except NttzooError:
        raise
    except Exception as error:
        raise DataError(f"{reference} raised {named.told(error)}.") from error
    if isinstance(found, Dataset):
        parts = (found.train.images, found.train.labels, found.test.images, found.test.labels)
        return validated(name, dict(zip(ARRAYS, parts, strict=True)), found.classes, found.license)
    if isinstance(found, dict):
        return _from_dict(found, name, reference)
    if isinstance(found, tuple | list) and len(found) == len(ARRAYS):
        return _from_dict(dict(zip(ARRAYS, found, strict=True)), name, reference)
    raise DataError(
        f"{reference} returned {type(found).__name__}; it must return ({', '.join(ARRAYS)}), a dictionary with these "
        "keys, or a nttzoo.data.Dataset."
    )


def _from_dict(arrays: dict[str, Any], name: str, where: str) -> Dataset:
    if missing := [key for key in ARRAYS if key not in arrays]:
        known = ", ".join(map(str, arrays))
        raise DataError(f"{where} has {known or 'nothing'}; {', '.join(missing)} is missing.")
    values = {key: np.asarray(arrays[key]) for key in ARRAYS}
    classes = arrays.get("classes")
    names = None if classes is None else tuple(map(str, np.asarray(classes).ravel().tolist()))
    return from_arrays(*(values[key] for key in ARRAYS), name=name, classes=names)
