"""Networks as WebAssembly, run by Node and by Chromium, beside JAX."""

import json
import math
import shutil
import subprocess
import sys
from functools import cache
from importlib import resources

import browser
import jax.numpy as jnp
import numpy as np
import pytest

import nttzoo
from nttzoo import data
from nttzoo.cli import main
from nttzoo.codegen import wasm
from nttzoo.codegen.training import compile_training
from nttzoo.codegen.wasm import toolchain
from nttzoo.errors import ExportError, OptionError


@cache
def missing():
    """Why nothing here can run, or nothing."""
    if not shutil.which("node"):
        return "Node is not installed"
    try:
        toolchain.find()
    except ExportError as error:
        return str(error)
    return ""


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())
SMALL, LENET5, CONV4 = "lenet300-mnist-1pct-global", "lenet5-mnist-3pct-global", "conv4-cifar10-1pct-layerwise"


def node(code, folder):
    """What a program prints as JSON; it may use `read(file, Type)`."""
    head = """\
import { readFileSync } from "node:fs";
const read = (file, Type) => new Type(Uint8Array.from(readFileSync(file)).buffer);
"""
    (folder / "main.mjs").write_text(head + code)
    done = subprocess.run(["node", "main.mjs"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def images_for(model, count=70):
    """Pixels, more of them than one call takes."""
    if model.input_spec.shape == (28, 28, 1):
        return data.load("mnist5k").test.images[:count]
    return np.random.default_rng(0).integers(0, 256, (count, *model.input_spec.shape)).astype(np.uint8)


PARITY = """\
import { load } from "./net.js";
const net = await load();
const pixels = read("pixels", Uint8Array), inputs = read("inputs", Float32Array);
const answer = net.classify(pixels.slice(0, net.size));
console.log(JSON.stringify({
  run: [...net.run(inputs)], one: [...net.run(inputs.slice(0, net.size))], logits: [...net.logits(pixels)],
  name: answer.name, probability: answer.probability, all: [...answer.probabilities], about: net.about,
}));
"""


@pytest.mark.parametrize("name", [SMALL, LENET5, pytest.param(CONV4, marks=pytest.mark.slow)])
def test_a_network_answers_in_node_as_in_jax(name, tmp_path):
    model = nttzoo.load(name, weights="trained")
    images = images_for(model)
    inputs = np.asarray(model.input_spec.standardize(images), np.float32)
    expected = np.asarray(model(jnp.asarray(inputs)))
    (tmp_path / "pixels").write_bytes(images.tobytes())
    (tmp_path / "inputs").write_bytes(inputs.tobytes())
    main(["export", name, str(tmp_path / "net.wasm")])
    seen = node(PARITY, tmp_path)
    scale = np.abs(expected).max()
    for key in ("run", "logits"):
        np.testing.assert_allclose(np.reshape(seen[key], expected.shape), expected, atol=1e-5 * scale, rtol=0)
    np.testing.assert_allclose(seen["one"], expected[0], atol=1e-5 * scale, rtol=0)
    powers = np.exp(expected[0] - expected[0].max())
    np.testing.assert_allclose(seen["all"], powers / powers.sum(), atol=1e-4)
    assert seen["name"] == model.input_spec.classes[expected[0].argmax()]
    assert seen["probability"] == max(seen["all"])
    assert seen["about"]["name"] == name


@pytest.mark.slow
@browser.needed
def test_a_network_answers_in_chromium_as_in_jax(tmp_path):
    model = nttzoo.load(SMALL, weights="trained")
    images = images_for(model, 3)
    expected = np.asarray(model(model.input_spec.standardize(images)))
    made = wasm.network(SMALL)
    page = f"""<!doctype html><script type="module">
{wasm.javascript("net.wasm").replace("export ", "")}
const bytes = Uint8Array.from({list(made.content)});
const net = await load(bytes);
globalThis.answer = [...net.logits(Uint8Array.from({images.ravel().tolist()}))];
</script>"""
    (tmp_path / "index.html").write_text(page)
    with browser.started() as chromium, browser.opened(chromium, tmp_path / "index.html") as tab:
        tab.until("Boolean(globalThis.answer)")
        seen = np.reshape(tab.page.evaluate("globalThis.answer"), expected.shape)
    np.testing.assert_allclose(seen, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


LEARN = """\
import { loadLearner } from "./net.js";
const learner = await loadLearner();
const pixels = read("pixels", Uint8Array), labels = read("labels", Uint8Array);
const steps = () => Array.from({ length: 5 }, () => learner.train(pixels, labels, 1e-3));
const losses = steps(), predicted = [...learner.predict(pixels)];
learner.reset();
console.log(JSON.stringify({ losses, again: steps(), predicted }));
"""


@pytest.mark.slow
def test_a_network_learns_in_node_as_the_compiled_step_does(tmp_path):
    model = nttzoo.load(SMALL)
    digits = data.load("mnist5k")
    images, labels = digits.train.images[:16], digits.train.labels[:16]
    (tmp_path / "pixels").write_bytes(images.tobytes())
    (tmp_path / "labels").write_bytes(labels.astype(np.uint8).tobytes())
    main(["export", SMALL, str(tmp_path / "net.wasm"), "--training"])
    seen = node(LEARN, tmp_path)
    step = compile_training(model)
    inputs = np.asarray(model.input_spec.standardize(images), np.float32)
    np.testing.assert_allclose(seen["losses"], [step(inputs, labels.astype(np.int32)) for _ in range(5)], rtol=1e-4)
    assert seen["losses"] == seen["again"]
    assert seen["predicted"] == step.logits(inputs).argmax(1).tolist()


# name: (numpy's or Python's function, where it is defined)
WIDE, POSITIVE, SHARE = (-30, 30), (1e-30, 1e6), (-1, 1)
MATH = {
    "expf": (np.exp, (-90, 88)),
    "expm1f": (np.expm1, WIDE),
    "logf": (np.log, POSITIVE),
    "log1pf": (np.log1p, (-0.999, 1e4)),
    "erff": (np.vectorize(math.erf), (-6, 6)),
    "sinf": (np.sin, (-100, 100)),
    "cosf": (np.cos, (-100, 100)),
    "tanf": (np.tan, (-1.5, 1.5)),
    "asinf": (np.arcsin, SHARE),
    "acosf": (np.arccos, SHARE),
    "atanf": (np.arctan, WIDE),
    "sinhf": (np.sinh, WIDE),
    "coshf": (np.cosh, WIDE),
    "tanhf": (np.tanh, WIDE),
    "asinhf": (np.arcsinh, WIDE),
    "acoshf": (np.arccosh, (1, 1e4)),
    "atanhf": (np.arctanh, (-0.9999, 0.9999)),
}


def test_elementary_functions_are_right_to_the_last_digits(tmp_path):
    count, rng = 4000, np.random.default_rng(0)
    calls = "".join(f"case {i}: return {name}(x);\n" for i, name in enumerate(MATH))
    exported = '__attribute__((export_name("{}"))) float {}'.format
    probe = f"""\
#include "math.h"
{exported("call", "call")}(int f, float x) {{ switch (f) {{\n{calls}}} return 0; }}
{exported("power", "power")}(float x, float y) {{ return powf(x, y); }}
"""
    sources = resources.files("nttzoo.codegen.wasm") / "sources"
    texts = {file: (sources / file).read_text() for file in ("math.h", "math.c")}
    (tmp_path / "math.wasm").write_bytes(toolchain.build(texts | {"probe.c": probe}))
    rows = []
    for _, (low, high) in MATH.values():
        spread = np.exp(rng.uniform(np.log(low), np.log(high), count)) if low > 0 else rng.uniform(low, high, count)
        tiny = np.array([0.0, 1e-10, -1e-10, 1e-4, -1e-4]) if low < 0 else np.zeros(0)
        rows.append(np.concatenate([spread, tiny, [low, high]]).astype(np.float32))
    for i, row in enumerate(rows):
        (tmp_path / f"x{i}").write_bytes(row.tobytes())
    pairs = [(2, 0.5), (2, -3), (-2, 3), (-2, 2), (0, 2), (5, 0), (1e-3, 1.7), (7.5, 2.25), (-2, 0.5), (1, 1e9)]
    code = f"""\
const {{ instance }} = await WebAssembly.instantiate(readFileSync("math.wasm"));
const all = [];
for (let i = 0; i < {len(MATH)}; i++) {{
  all.push(Array.from(read("x" + i, Float32Array), (x) => String(instance.exports.call(i, x))));
}}
const powers = {json.dumps(pairs)}.map(([x, y]) => String(instance.exports.power(x, y)));
console.log(JSON.stringify({{ all, powers }}));
"""
    seen = node(code, tmp_path)
    for (name, (function, _)), row, values in zip(MATH.items(), rows, seen["all"], strict=True):
        with np.errstate(all="ignore"):
            expected = function(row.astype(np.float64)).astype(np.float32)
        got = np.array([v.replace("Infinity", "inf") for v in values], np.float64)
        np.testing.assert_allclose(
            got, expected, rtol=3e-7, atol=3e-7 if name in ("sinf", "cosf") else 1e-38, err_msg=name
        )
    with np.errstate(all="ignore"):
        expected = [np.float32(x) ** np.float32(y) for x, y in pairs]
    np.testing.assert_allclose([float(v.replace("NaN", "nan")) for v in seen["powers"]], expected, rtol=3e-7)


@pytest.mark.slow
def test_zig_from_pypi_is_taken_where_there_is_no_clang(tmp_path, monkeypatch):
    pytest.importorskip("ziglang")
    real = shutil.which
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None if "clang" in name else real(name))
    toolchain.find.cache_clear()
    try:
        assert "ziglang" in toolchain.find()
        model = nttzoo.load(SMALL, weights="trained")
        images = images_for(model)
        (tmp_path / "pixels").write_bytes(images.tobytes())
        nttzoo.export_wasm(SMALL, tmp_path / "net.wasm")
    finally:
        toolchain.find.cache_clear()
    code = """\
import { load } from "./net.js";
const net = await load();
console.log(JSON.stringify([...net.logits(read("pixels", Uint8Array))]));
"""
    expected = np.asarray(model(model.input_spec.standardize(images)))
    seen = np.reshape(node(code, tmp_path), expected.shape)
    np.testing.assert_allclose(seen, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


def test_without_a_compiler_the_error_names_both(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "ziglang", None)
    monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
    toolchain.find.cache_clear()
    try:
        with pytest.raises(ExportError, match=r"apt install clang lld.*nttzoo\[wasm\]"):
            nttzoo.export_wasm(SMALL, tmp_path / "net.wasm")
    finally:
        toolchain.find.cache_clear()
    assert not list(tmp_path.iterdir())


def test_mistakes_are_refused(tmp_path):
    with pytest.raises(OptionError, match=r"should end in \.wasm"):
        nttzoo.export_wasm(SMALL, tmp_path / "net.js")
    wasm.export_wasm(SMALL, tmp_path / "net.wasm")
    code = """\
import { load } from "./net.js";
const net = await load();
const said = [];
for (const call of [() => net.classify([1, 2]), () => net.run(new Float32Array(5))]) {
  try { call(); } catch (error) { said.push(error.message); }
}
const empty = Uint8Array.from([0, 97, 115, 109, 1, 0, 0, 0]);
await load(empty).catch((error) => said.push(error.message));
console.log(JSON.stringify(said));
"""
    said = node(code, tmp_path)
    assert "one image has 784 values, got 2" in said[0]
    assert "5 numbers are not a multiple of 784" in said[1]
    assert "was not made by nttzoo" in said[2]
