import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nttzoo import cli, data
from nttzoo.errors import DataError, OptionError, UnknownName
from nttzoo.experiments import dynamics, trajectories
from nttzoo.search import recipes


def test_gradient_descent_on_a_linear_model_by_hand():
    model = nnx.Linear(1, 2, use_bias=False, rngs=nnx.Rngs(0))
    model.kernel[...] = jnp.array([[1.0, -1.0]])
    x, targets = jnp.array([[2.0], [1.0]]), jnp.zeros((2, 2))
    found = trajectories.descend(model, x, targets, 2)
    # loss = mean over 4 entries of f^2 / 2 = (4 w^2 + w^2) / 8 per weight; each step shrinks w by 1 - 0.01 * 5 / 4
    shrink = 1 - trajectories.LEARNING_RATE * 5 / 4
    for step in range(3):
        w = shrink**step
        np.testing.assert_allclose(found[step], [[2 * w, -2 * w], [w, -w]], rtol=1e-6)
    assert model.kernel[0, 0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("model", ["lenet300"])
def test_the_students_path_is_nearer_to_the_teachers_than_a_random_networks(tmp_path, capsys, model):
    out = tmp_path / "visual.json"
    arguments = ["--model", model, "--epochs", "40", "--steps", "30", "--runs", str(tmp_path), "--out", str(out)]
    cli.main(["visualize", *arguments])
    content = json.loads(out.read_text())
    distance = content["mean_distance_from_teacher"]
    assert distance["student"] < distance["random"]
    assert distance["linearized teacher"] < distance["random"]
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert "student: mean distance" in capsys.readouterr().out


def test_what_cannot_be_followed_is_refused():
    with pytest.raises(UnknownName, match="lenet300"):
        trajectories.follow("conv4", data.load("mnist5k"))
    few = data.from_arrays(*(np.zeros((9, 28, 28, 1), np.uint8), np.zeros(9, int)) * 2)
    with pytest.raises(DataError, match="9 images of its first two classes; 500 are needed"):
        trajectories.follow("lenet300", few)


def test_the_report_has_the_dynamics_of_each_network(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trajectories, "IMAGES", 40)
    monkeypatch.setitem(recipes.VISUAL, "lenet300", recipes.VISUAL["lenet300"].change(batch_size=40))
    with pytest.raises(OptionError, match="no network matches conv4; there are lenet300"):
        dynamics.select(["lenet300"], ["conv4"])
    cli.main(["reproduce", "dynamics", "--budget", "smoke", "--only", "lenet300"])
    content = json.loads((tmp_path / "results/reproduce/dynamics/lenet300-mnist5k-20steps.json").read_text())
    assert list(content["students"]) == ["student, all tangents", "student, active tangents"]
    assert set(content["steps_to_learn"]) == {"teacher", "random", "linearized teacher", *content["students"]}
    text = (tmp_path / "results/REPORT.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| student, active tangents |")]
    assert f"| {content['mean_distance_from_teacher']['student, active tangents']:.3f} |" in row
    assert (tmp_path / "results" / text.split("](")[1].split(")")[0]).read_bytes().startswith(b"\x89PNG")


def test_steps_to_learn_by_hand():
    targets = np.array([[1.0, 0.0]])
    outputs = {  # the losses are f^2 / 4: 1, then 0.25, then 0.0625
        "teacher": targets + np.array([2.0, 1.0, 0.5])[:, None, None] * [1, 0],
        "slow": targets + np.array([2.0, 2.0, 2.0])[:, None, None] * [1, 0],
    }
    seen = trajectories.Trajectories("lenet300", outputs, targets, {})
    np.testing.assert_allclose(seen.losses()["teacher"], [1, 0.25, 0.0625])
    assert seen.steps_to_learn() == {"teacher": 2, "slow": None}
