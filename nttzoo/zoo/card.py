"""A published network's card, in Hugging Face form: made from its metrics alone, never edited by hand."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from nttzoo.search import recipes

CITATION = """@inproceedings{liu2020ntt,
  title = {Finding Trainable Sparse Networks through Neural Tangent Transfer},
  author = {Liu, Tianlin and Zenke, Friedemann},
  booktitle = {International Conference on Machine Learning},
  year = {2020}
}"""

RUNTIMES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "deepsparse": "DeepSparse",
    "nttzoo_c": "nttzoo's C",
}
MEASURED = (("1", "1"), ("64", "2"))  # (images at once, threads) of the times that a card shows


def card(metrics: dict[str, Any]) -> str:
    """The card as Markdown with YAML front matter."""
    sections = [
        _front_matter(metrics),
        f"# {metrics['name']}",
        _fill(
            f"A {metrics['architecture']} with {100 * metrics['density']:.6g} % of its weights (scheme: "
            f"{metrics['scheme']}{_by_layer(metrics)}), found before training and without labels by Neural Tangent "
            "Transfer: it starts like a dense network and learns like it. Here are its sparse initialization and its "
            "trained weights."
        ),
        _usage(metrics),
        "## How it was made",
        _fill(
            f"Method `{metrics['recipe']['name']}`, seed {metrics['seed']}, {metrics['search_steps']:,} search steps "
            f"on the unlabeled training images of {metrics['dataset']}, then {metrics['train']['epochs']} epochs of "
            f"Adam with labels{'' if metrics['train']['dropout'] else ', without dropout'}. All values are in "
            "recipe.toml. The mean squared difference between its tangent kernel and the dense network's, on held-out "
            f"images, is {metrics['kernel_after']:.4g}; for the dense network merely pruned to this density it is "
            f"{metrics['kernel_before']:.4g}."
        ),
        f"    {metrics['command']}",
        f"## Test accuracy after {metrics['train']['epochs']} epochs",
        _table(
            ("method", "scheme", "seeds", "test accuracy, %"),
            [_accuracies(row, metrics["recipe"]["name"]) for row in metrics["compared"]],
        ),
        _fill(
            f"The weights here are those of seed {metrics['seed']} ({100 * metrics['chosen']['test_accuracy']:.2f} %), "
            f"chosen by validation accuracy ({100 * metrics['chosen']['validation_accuracy']:.2f} %)."
        ),
        "## Size and cost",
        _table(("layer", "weights", "kept", "density", "multiply-adds, dense", "sparse"), _layers(metrics)),
        _fill(
            f"Theoretical speedup: {metrics['speedup']['theoretical']:.1f}x, or "
            f"{metrics['speedup']['without_dead']:.1f}x without weights that are not on any path from input to "
            "output."
        ),
        _measured(metrics),
        _fill(
            f"As C (`nttzoo export {metrics['name']} net.c --format c`): {_kilobytes(metrics['c'], '')}; with all its "
            f"weights it would be {_kilobytes(metrics['c'], 'dense_')}. On {metrics['c']['images']} test images its "
            f"outputs differ from the model's by {metrics['c']['difference']:.0e} of the largest."
        ),
        "## Limits",
        _limits(metrics),
        "## License and citation",
        f"Weights: Apache-2.0. Training data: {metrics['licence']}.",
        f"```bibtex\n{CITATION}\n```",
    ]
    return "\n\n".join(sections) + "\n"


def _by_layer(metrics: dict[str, Any]) -> str:
    """The densities of an entry that has some of its own for some layers."""
    given = "".join(f"; {glob}: {100 * density:.6g} %" for glob, density in (metrics.get("densities") or {}).items())
    dense = metrics.get("exclude")
    return given + (f"; dense: {', '.join(dense)}" if dense else "")


def _front_matter(metrics: dict[str, Any]) -> str:
    data = metrics["dataset"]
    lines = [
        "---",
        "license: apache-2.0",
        "library_name: nttzoo",
        "pipeline_tag: image-classification",
        "tags: [sparse, pruning-before-training, neural-tangent-kernel, jax, flax]",
        f"datasets: [{data}]",
        "model-index:",
        f"- name: {metrics['name']}",
        "  results:",
        "  - task: {type: image-classification}",
        f"    dataset: {{type: {data}, name: {data}, split: test}}",
        f"    metrics: [{{type: accuracy, value: {metrics['chosen']['test_accuracy']:.4f}}}]",
        "---",
    ]
    return "\n".join(lines)


def _usage(metrics: dict[str, Any]) -> str:
    name, factory, note = metrics["name"], "", []
    if own := metrics.get("factory"):
        factory = ", factory=factory"
        note = [f"# factory() makes the network of {own['reference']}: nttzoo imports no code that a file names"]
    lines = [
        "```python",
        "import nttzoo",
        "",
        *note,
        f'model = nttzoo.load("{name}"{factory})  # weights="init", the sparse initialization, to train yourself',
        f'model = nttzoo.load("{name}", weights="trained"{factory})  # the network whose accuracy is below',
        "logits = model(model.input_spec.standardize(images))  # uint8 [n, h, w, c]",
        "```",
        "",
        _fill(
            "`model.onnx` beside this card is the trained network for other runtimes: masks applied, weights stored as "
            "sparse initializers, images as float32 [batch, h, w, c]; mean, std and class names are in its metadata. "
            "OpenVINO and DeepSparse need dense weights: `nttzoo export --dense`."
        ),
    ]
    return "\n".join(lines)


def _kilobytes(sizes: dict[str, Any], which: str) -> str:
    flash, ram = (sizes[f"{which}{part}_bytes"] / 1000 for part in ("table", "arena"))
    return f"{flash:.1f} kB of tables (flash) and {ram:.1f} kB of working memory (RAM)"


def _limits(metrics: dict[str, Any]) -> str:
    """What not to expect: the data set, and a search that was shorter or coarser than the paper's."""
    recipe = metrics["recipe"]
    paper = recipes.PAPER.get((metrics["architecture"], metrics["dataset"]))
    text = f"A small network for {metrics['dataset']}; it was not tested on other data."
    if paper and recipe["epochs"] < paper.epochs:
        text += f" A short search: {recipe['epochs']} of the whole recipe's {paper.epochs} epochs."
    if recipe["outputs"] is not None:
        count = len(metrics["classes"])
        text += f" The kernel was matched on {recipe['outputs']} of {count} outputs per step, resampled at each step."
    return _fill(text)


def _measured(metrics: dict[str, Any]) -> str:
    """Measured times beside the dense network's, where there are any."""
    if not metrics.get("runtimes"):
        return "No runtime was measured for this entry. Most gain nothing from unstructured sparsity."
    own, dense = metrics["runtimes"]["own"], metrics["runtimes"]["dense"]
    rows = []
    for key, title in RUNTIMES.items():
        cells = []
        for batch, threads in MEASURED:
            if all(key in part[batch][threads] for part in (own, dense)):
                times = [1000 * part[batch][threads][key] / int(batch) for part in (own, dense)]
                cells += [f"{times[0]:.1f}", f"{times[1]:.1f}"]
        if cells:
            rows.append((title, *cells))
    columns = ("runtime", "1 image, 1 thread", "dense", "64 images, 2 threads", "dense")
    text = (
        "Measured, in microseconds per image. ONNX Runtime and OpenVINO do not exploit the mask; DeepSparse "
        f"(discontinued) and nttzoo's C do. On {metrics['runtimes']['machine']}."
    )
    return f"{_table(columns, rows)}\n\n{_fill(text)}"


def _fill(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False, break_long_words=False)


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _accuracies(row: dict[str, Any], own: str) -> tuple[str, ...]:
    values = [100 * value for value in row["test_accuracy"]]
    spread = f" ({min(values):.2f} to {max(values):.2f})" if len(values) > 1 else ""
    mark = "**" if row["method"] == own else ""
    mean = f"{mark}{sum(values) / len(values):.2f}{mark}{spread}"
    return f"{mark}{row['method']}{mark}", row["scheme"], str(len(values)), mean


def _layers(metrics: dict[str, Any]) -> list[tuple[str, ...]]:
    costs = {layer["name"]: layer for layer in (*metrics["speedup"]["layers"], metrics["speedup"]["total"])}
    total = {key: sum(layer[key] for layer in metrics["layers"]) for key in ("size", "kept")}
    return [
        (
            layer["name"],
            f"{layer['size']:,}",
            f"{layer['kept']:,}",
            f"{layer['kept'] / layer['size']:.2%}",
            f"{costs[layer['name']]['dense']:,}",
            f"{costs[layer['name']]['sparse']:,}",
        )
        for layer in (*metrics["layers"], {"name": "total", **total})
    ]


def zoo_card(entries: list[dict[str, Any]]) -> str:
    """MODEL_CARD.md: the zoo as a whole."""
    rows = [
        (
            f"[{m['name']}](models/{m['name']}/README.md)",
            m["recipe"]["name"],
            f"{100 * m['chosen']['test_accuracy']:.2f}",
            str(m["train"]["epochs"]),
            f"{m['speedup']['theoretical']:.1f}x",
            f"{m['kernel_before']:.4g} -> {m['kernel_after']:.4g}",
        )
        for m in entries
    ]
    sections = [
        "# The zoo",
        _fill(
            "Sparse networks found before training and without labels by Neural Tangent Transfer. `nttzoo.load(name)` "
            'gives the sparse initialization, `nttzoo.load(name, weights="trained")` the trained network. Made by '
            "`scripts/publish.py` from the entries' metrics.json: do not edit."
        ),
        _table(("network", "method", "test accuracy, %", "epochs", "theoretical speedup", "kernel distance"), rows),
        "Weights: Apache-2.0. Each card names the license of its training data.",
    ]
    return "\n\n".join(sections) + "\n"
