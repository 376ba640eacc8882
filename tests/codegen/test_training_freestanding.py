"""The training step as one C file: on this machine with sanitizers, and on an emulated microcontroller."""

from __future__ import annotations

import shutil
import subprocess

import numpy as np
import pytest
from flax import nnx
from training_networks import PARTS, Body, Residual, batch_for, conv, pooled, pruned

import nttzoo
from nttzoo.codegen import device
from nttzoo.codegen.training import compile_training, export_training_c
from nttzoo.errors import OptionError

pytestmark = pytest.mark.skipif(not shutil.which("gcc"), reason="no C compiler")

MAIN = """\
#include <stdio.h>
#include "net.h"
static struct net_state state;
static float arena[NET_ARENA];
static const float images[] = {@IMAGES@};
static const uint8_t labels[] = {@LABELS@};
int main(void) {
    float logits[NET_OUTPUTS];
    int i;
    for (i = 0; i < NET_ARENA; i++) arena[i] = 1e30f; /* its content must not matter */
    net_init(&state);
    for (i = 0; i < @STEPS@; i++) printf("%.9g\\n", (double)net_train(&state, arena, images, labels, @COUNT@, 1e-3f));
    net_run(&state, arena, images, logits);
    for (i = 0; i < NET_OUTPUTS; i++) printf("%.9g\\n", (double)logits[i]);
    return 0;
}
"""
STRICT = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-O1", "-g"]


def filled(text, images, labels, steps):
    marks = {
        "@IMAGES@": ", ".join(f"{value:.9e}f" for value in images.ravel()),
        "@LABELS@": ", ".join(map(str, labels)),
        "@COUNT@": str(len(labels)),
        "@STEPS@": str(steps),
    }
    for mark, value in marks.items():
        text = text.replace(mark, value)
    return text


def rough():
    """A network with borders, strides, overlapping windows, normalization and a residual path."""
    parts = [conv(3, 4), nnx.relu, Residual(4, 2), pooled("max", (3, 3), (2, 2), "SAME"), nnx.gelu]
    return pruned(Body(parts, (7, 6, 3), 4, rngs=nnx.Rngs(0)))


@pytest.mark.slow
@pytest.mark.parametrize("make", [rough, lambda: pruned(Body(PARTS["max pool"], (7, 6, 3), 4, rngs=nnx.Rngs(0)))])
def test_the_c_file_learns_like_the_library_and_sanitizers_are_silent(make, tmp_path):
    model = make()
    images, labels = batch_for((7, 6, 3), 4, n=5)
    print(export_training_c(model, tmp_path / "net.c"))
    (tmp_path / "main.c").write_text(filled(MAIN, images, labels, 4))
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    files = [tmp_path / "net.c", tmp_path / "main.c"]
    subprocess.run(["gcc", *STRICT, *sanitizers, *files, "-o", tmp_path / "net", "-lm"], check=True)
    ended = subprocess.run([tmp_path / "net"], capture_output=True, text=True, check=True)
    seen = np.array(ended.stdout.split(), float)
    step = compile_training(model)
    expected = [step(images, labels) for _ in range(4)]
    np.testing.assert_allclose(seen[:4], expected, rtol=1e-4)
    np.testing.assert_allclose(seen[4:], step.logits(images[:1])[0], atol=1e-3)
    assert expected[-1] < expected[0]


@pytest.mark.skipif(bool(device.missing_tools()), reason=f"not installed: {', '.join(device.missing_tools())}")
def test_a_microcontroller_learns_like_this_machine():
    model = nttzoo.load("lenet300-mnist-1pct-layerwise")
    digits = nttzoo.data.load("mnist5k")
    images = np.asarray(model.input_spec.standardize(digits.train.images[:8]), np.float32)
    labels = digits.train.labels[:8]
    seen = device.train(model, images, labels, steps=5, learning_rate=1e-3)
    step = compile_training(model)
    expected = [step(images, labels.astype(np.int32)) for _ in range(5)]
    np.testing.assert_allclose(seen.losses, expected, rtol=1e-5)
    assert seen.losses[-1] < seen.losses[0]
    assert seen.flash < 100_000
    assert seen.ram < 150_000


def test_a_path_that_is_no_c_file_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"should end in \.c"):
        export_training_c(rough(), tmp_path / "net.txt")
