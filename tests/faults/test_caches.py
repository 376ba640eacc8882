"""Files of the cache of compiled networks that rot: what is computed afterwards is what was computed before."""

import shutil

import numpy as np
import pytest

from nttzoo import architectures, codegen
from nttzoo.codegen.training import compile_training
from nttzoo.sparsity import pruning

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


@pytest.fixture(scope="module")
def model():
    return pruning.prune(
        architectures.create("lenet300", input_shape=(4, 4, 1), num_classes=3, rngs=0), "magnitude", density=0.1
    )


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "nttzoo" / "libraries"


def train(model):
    images = np.random.default_rng(0).normal(size=(8, 4, 4, 1)).astype(np.float32)
    return compile_training(model, input_shape=(4, 4, 1), threads=1)(images, np.arange(8) % 3)


def infer(model):
    return codegen.compile(model, input_shape=(4, 4, 1))(np.ones((2, 4, 4, 1), np.float32))


def damage(path, place):
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 0x80
    path.unlink()  # this process has the library mapped
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("run", "kinds"),
    [pytest.param(train, ("graph-*", "*.so"), marks=pytest.mark.slow), (infer, ("*.checked", "*.so"))],
    ids=["training", "inference"],
)
def test_damaged_files_are_made_again(model, cache, run, kinds):
    expected = run(model)
    for kind in kinds:
        for place in (0, 40, -40):
            (path,) = cache.glob(kind)
            damage(path, place)
            np.testing.assert_array_equal(run(model), expected)
            assert len(list(cache.glob(kind))) == 1
