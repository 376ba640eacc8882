"""Draws docs/images/pareto.png from results/compare: `python scripts/figures.py`. report.png is a search's own."""

from collections import defaultdict
from pathlib import Path

from nttzoo._util import figures
from nttzoo._util.provenance import read_json

ROOT = Path(__file__).parents[1]
SHOWN = {
    ("ntt", "global"): "NTT, global (no labels)",
    ("gradual", "global"): "gradual NTT, global (no labels)",
    ("snip", "global"): "SNIP, global (labels)",
    ("random", "layerwise"): "random mask",
}


def main() -> None:
    """Mean test accuracy over all seeds that were trained for 50 epochs, for each method and density."""
    seen = defaultdict(list)
    for path in sorted((ROOT / "results" / "compare").glob("lenet300-mnist*.json")):
        content = read_json(path)
        if content["comparison"]["train_epochs"] == 50:
            for case in content["cases"]:
                seen[case["method"], case.get("scheme"), case.get("density")].append(100 * case["test_accuracy"])
    figure, axis = figures.subplots(1, 1, figsize=(7, 4.5))
    for (method, scheme), label in SHOWN.items():
        points = sorted((d, sum(v) / len(v)) for (m, s, d), v in seen.items() if (m, s) == (method, scheme))
        axis.plot([100 * d for d, _ in points], [accuracy for _, accuracy in points], marker="o", label=label)
    dense = [value for (method, *_), values in seen.items() if method == "dense" for value in values]
    axis.axhline(sum(dense) / len(dense), color="0.5", linestyle="--", label="dense")
    axis.set(xscale="log", xlabel="weights kept, %", ylabel="test accuracy, %", ylim=(80, 99))
    axis.set_xticks([1, 2, 3, 5, 10], ["1", "2", "3", "5", "10"])
    axis.set_title("LeNet-300-100 on MNIST, 50 epochs of training")
    axis.legend(frameon=False)
    figures.save(figure, ROOT / "docs" / "images" / "pareto.png")


if __name__ == "__main__":
    main()
