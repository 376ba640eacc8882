"""What the gallery draws of networks, and how it is rounded, without a browser."""

import json
import shutil
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest
from test_gallery import FIRST, needs_compiler

import nttzoo
from nttzoo import architectures, data, zoo
from nttzoo.codegen import wasm
from nttzoo.gallery import compact, facts
from nttzoo.nn import masked_layers, path_name
from nttzoo.sparsity import pruning


def drawn(name):
    """(the kernels of a network of 5 % density, what is drawn of it)."""
    model = architectures.create(name, rngs=0)
    pruning.prune(model, "random", density=0.05, rngs=0)
    shape = model.input_shape
    channels = shape[-1]
    model.input_spec = data.InputSpec(shape, (0.5,) * channels, (0.2,) * channels, tuple("0123456789"))
    kernels = {path_name(path): np.asarray(layer.masked_kernel()) for path, layer in masked_layers(model).items()}
    rows = [{"name": key} for key in kernels]
    shown = facts.Exhibit(name, {"layers": rows, "costs": list(rows)})
    facts._draw(model, "init", shown)
    return kernels, shown


@pytest.mark.parametrize("name", ["ds_cnn", "resnet20"])
def test_the_first_layer_is_the_one_that_reads_the_image(name):
    """It is not the first by its name."""
    kernels, shown = drawn(name)
    stem = kernels["stem"]
    assert [row["name"] for row in shown.facts["layers"]] == [
        "stem",
        *sorted(key for key in kernels if "." in key),
        "output",
    ]
    connected = np.count_nonzero((stem != 0).any((0, 1, 2)))
    assert shown.facts["units"] == {"all": stem.shape[-1], "connected": connected}
    assert shown.arrays["fields"].shape == (min(facts.FIELDS, connected), *stem.shape[:2])
    summed = stem.sum(2)[..., np.argmax((stem != 0).sum((0, 1, 2)))]
    np.testing.assert_array_equal(shown.arrays["fields"][0], np.round(15 * summed / np.abs(summed).max()))


def test_a_recurrent_network_shows_the_mask_of_what_reads_a_row():
    kernels, shown = drawn("gru")
    np.testing.assert_array_equal(shown.arrays["mask"], kernels["recurrent.cell.dense_i"] != 0)
    assert shown.facts["layers"][-1] == {"name": "output"}
    assert "fields" not in shown.arrays


def test_every_connection_can_be_drawn_again():
    _, shown = drawn("lenet300")
    assert "graph" not in shown.facts  # too many at 5 %
    shown = facts.exhibit(FIRST)
    graph, model = shown.facts["graph"], zoo.load(FIRST, weights="trained")
    ends = np.cumsum(graph["edges"])[:-1]
    parts = zip(
        np.split(shown.arrays["edges"], ends),
        np.split(shown.arrays["weights"][: sum(graph["edges"])], ends),
        masked_layers(model).values(),
        strict=True,
    )
    for gaps, weights, layer in parts:
        kernel = np.zeros(layer.kernel.shape, np.float32)
        kernel.ravel()[np.cumsum(gaps)] = (weights.astype(np.uint32) << 16).view(np.float32)
        np.testing.assert_allclose(kernel, layer.masked_kernel(), rtol=2**-8)


def test_numbers_are_rounded_as_bfloat16_is():
    values = np.random.default_rng(0).standard_normal((50, 40)).astype(np.float32)
    ties = np.array([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0, -0.0, 1e-40], np.float32)
    for numbers in (values, ties, np.float32(1.5)):
        expected = np.asarray(jnp.asarray(numbers).astype(jnp.bfloat16).astype(jnp.float32))
        np.testing.assert_array_equal(compact.rounded(numbers), expected)


def test_triangles_hold_symmetric_matrices_on_one_scale():
    matrices = np.array([[[4.0, -1.0], [-1.0, 2.0]], [[1.0, 0.5], [0.5, 0.0]]])
    assert compact.triangles(matrices).tolist() == [[255, 0, 128], [64, 32, 0]]


def test_digits_in_fewer_shades_are_close():
    images = np.arange(256, dtype=np.uint8)
    found = compact.grays(images)
    assert len(np.unique(found)) == 16
    assert (found[0], found[-1]) == (0, 255)
    assert np.abs(found.astype(int) - images).max() <= 8


CODE = """\
import {{ readFileSync }} from "node:fs";
import {{ load }} from "./net.js";
const net = await load();
const logits = net.logits(Uint8Array.from(readFileSync("pixels")));
console.log(JSON.stringify([...logits]));
"""


@needs_compiler
@pytest.mark.skipif(not shutil.which("node"), reason="Node is not installed")
def test_rounded_weights_answer_as_exact_ones_do(tmp_path):
    digits = data.load("mnist5k").test
    made = compact.network(FIRST)
    assert made.about["name"] == FIRST
    (tmp_path / "net.wasm").write_bytes(made.content)
    (tmp_path / "net.js").write_text(wasm.javascript("net.wasm"))
    (tmp_path / "pixels").write_bytes(digits.images.tobytes())
    (tmp_path / "main.mjs").write_text(CODE.format())
    done = subprocess.run(["node", "main.mjs"], cwd=tmp_path, capture_output=True, text=True, check=True)
    seen = np.reshape(json.loads(done.stdout), (len(digits.labels), -1))
    model = nttzoo.load(FIRST, weights="trained")
    exact = np.asarray(model(model.input_spec.standardize(digits.images)))
    assert np.abs(seen - exact).max() <= 2**-6 * np.abs(exact).max()
    assert (seen.argmax(1) == exact.argmax(1)).mean() > 0.995
