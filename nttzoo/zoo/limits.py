"""What not to expect of a published network, from its metrics."""

from __future__ import annotations

from typing import Any

from nttzoo.search import recipes
from nttzoo.zoo import methods
from nttzoo.zoo.titles import title


def limits(metrics: dict[str, Any]) -> list[str]:
    """One sentence each."""
    return [
        f"Trained and tested on {title(metrics['dataset'])} only; not evaluated on any other data.",
        *_evidence(metrics),
        *_search(metrics),
        "Most runtimes, ONNX Runtime and OpenVINO among them, compute pruned weights as zeros and gain no speed.",
    ]


def _evidence(metrics: dict[str, Any]) -> list[str]:
    """What the comparison with other methods lacks, or shows to the network's disadvantage."""
    compared = methods.compared(metrics)
    means = {row["method"]: methods.mean(row) for row in compared}
    own = means.get(methods.method(metrics["recipe"]), metrics["chosen"]["test_accuracy"])
    simpler = [name for name, mean in means.items() if mean > own and name not in (*recipes.NAMES, "dense")]
    found = []
    if simpler:
        found.append(f"More accurate at this density: {', '.join(f'`{name}`' for name in simpler)} (see the table).")
    if len(compared) == 1:
        found.append("Not compared with other methods or with the dense network.")
    elif "dense" not in means:
        found.append("Not compared with the dense network.")
    if len(compared) > 1 and all(len(row["test_accuracy"]) == 1 for row in compared):
        found.append("One seed per method: small differences in the table may be chance.")
    return found


def _search(metrics: dict[str, Any]) -> list[str]:
    """How the search was shorter or coarser than the paper's."""
    recipe, found = metrics["recipe"], []
    paper = recipes.PAPER.get((metrics["architecture"], metrics["dataset"]))
    if paper and recipe["epochs"] < paper.epochs:
        found.append(f"A short search: {recipe['epochs']} of the {paper.epochs} epochs in the paper's recipe.")
    if recipe["outputs"] is not None:
        found.append(
            f"The search matched the kernel on {recipe['outputs']} of {len(metrics['classes'])} outputs per image, "
            "resampled at each step."
        )
    return found
