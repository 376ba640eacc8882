"""The generated C on an emulated microcontroller."""

import numpy as np
import pytest

import nttzoo
from nttzoo import cli, codegen
from nttzoo.codegen import device
from nttzoo.errors import ExportError

NAME = "lenet300-mnist-3pct-layerwise"
needs_tools = pytest.mark.skipif(
    bool(device.missing_tools()), reason=f"not installed: {', '.join(device.missing_tools())}"
)


@needs_tools
def test_a_microcontroller_answers_like_jax(capsys, tmp_path):
    cli.main(["device", NAME, "--images", "5", "--out", str(tmp_path / "d.json")])
    printed = capsys.readouterr().out
    assert "as in JAX" in printed
    assert (tmp_path / "d.json").exists()
    seen = device.check(NAME, images=3)
    model = nttzoo.load(NAME, weights="trained")
    digits = nttzoo.data.load("mnist5k").test.images[:3]
    expected = np.asarray(model(model.input_spec.standardize(digits))).argmax(1)
    assert seen["predictions"] == [str(k) for k in expected]
    assert seen["flash_bytes"] < seen["dense"]["flash_bytes"] / 15
    assert seen["ram_bytes"] <= seen["dense"]["ram_bytes"]


def test_missing_tools_are_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    source, shape = codegen.to_source(NAME)
    with pytest.raises(ExportError, match=r"arm-none-eabi-gcc, .* not found\. On Debian: apt install"):
        device.run(source, np.zeros((1, *shape), np.float32))
