import shutil

import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest

import nttzoo
from nttzoo import zoo
from nttzoo.experiments import publish
from nttzoo.sparsity import masks
from nttzoo.zoo import card

# The entries that come with the package.


@pytest.mark.parametrize("name", zoo.list_models())
def test_each_published_entry_loads_is_at_its_density_and_matches_its_card(name):
    entry = nttzoo.info(name)
    for weights in ("init", "trained"):
        model = nttzoo.load(name, weights=weights)
        report = masks.density_report(model)
        counted = report.layers if entry.scheme == "layerwise" else [report.total]
        assert [x.kept for x in counted] == [round(entry.density * x.size) for x in counted]
        assert [x.kept for x in report.layers] == [layer["kept"] for layer in entry.layers]
        assert bool(jnp.isfinite(model(jnp.ones((1, *model.input_spec.shape)))).all())
    home = next(h for h in zoo.homes() if (h / "models" / name).is_dir())
    session = onnxruntime.InferenceSession(home / "models" / name / "model.onnx", providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).normal(size=(4, *model.input_spec.shape)).astype(np.float32)
    expected = np.asarray(model(jnp.asarray(x)))
    assert np.abs(session.run(None, {"images": x})[0] - expected).max() <= 1e-5 * np.abs(expected).max()
    assert (home / "models" / name / "README.md").read_text() == card.card(entry.metrics)
    assert name == f"{entry.architecture}-{entry.dataset}-{100 * entry.density:.6g}pct-{entry.scheme}"


def test_the_published_index_and_card_are_those_of_the_entries(tmp_path):
    home = zoo.homes()[0]
    for part in ("models", "checkpoints"):
        shutil.copytree(home / part, tmp_path / part)
    publish.regenerate(tmp_path)
    for path in ("models/index.json", "MODEL_CARD.md"):
        assert (tmp_path / path).read_bytes() == (home / path).read_bytes()
    jax.clear_caches()
