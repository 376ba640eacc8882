"""The Python code of every page runs, block after block, as a reader would run it."""

import re
from pathlib import Path

import numpy as np
import pytest
from flax import nnx

import nttzoo
from nttzoo import data, search
from nttzoo.codegen import device
from nttzoo.data import Labeled

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))] if BLOCK.search(path.read_text())]


def small_network():
    return nttzoo.sparsify(
        nnx.Sequential(
            lambda x: x.reshape(len(x), -1), nnx.Linear(784, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 10, rngs=nnx.Rngs(1))
        )
    )


@pytest.fixture
def few_images(monkeypatch):
    """A tenth of the embedded images: what is tested is that the code runs."""
    whole = data.load("mnist5k")
    part = data.from_arrays(
        *(array[::10] for split in (whole.train, whole.test) for array in (split.images, split.labels)),
        name="mnist5k",
        classes=whole.classes,
    )
    assert isinstance(part.train, Labeled)
    monkeypatch.setattr(data, "load", lambda name, **_: part)
    return part


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page, few_images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # What a page takes for granted: a model and images of the reader's own.
    known = {"nttzoo": nttzoo, "search": search, "np": np, "Path": Path, "nnx": nnx}
    if page.name != "README.md":
        images = np.asarray(few_images.standardize(few_images.train.images))
        known |= {"model": small_network(), "images": images, "mnist": few_images}
    if page.name == "tutorial_microcontroller.md" and device.missing_tools():
        pytest.skip("needs a compiler for microcontrollers and QEMU")
    if page.name == "deployment.md":
        pytest.importorskip("openvino")
        pytest.importorskip("deepsparse")
    for block in BLOCK.findall(page.read_text()):
        exec(compile(block, str(page), "exec"), known)  # our own pages
