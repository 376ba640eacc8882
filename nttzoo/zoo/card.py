"""A published network's card, in Hugging Face form: made from its metrics alone, never edited by hand."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from nttzoo.search import recipes
from nttzoo.zoo import limits, methods
from nttzoo.zoo.titles import title

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
ALIKE = "All networks in the table were trained alike; with several seeds, it shows the mean (lowest to highest). "
MEASURED = (("1", "1"), ("64", "2"))  # (images at once, threads) of the times that a card shows


def card(metrics: dict[str, Any]) -> str:
    """The card as Markdown with YAML front matter."""
    sections = [
        _front_matter(metrics),
        f"# {metrics['name']}",
        _fill(
            f"{title(metrics['architecture'])} for {title(metrics['dataset'])} with {100 * metrics['density']:.6g} % "
            f"of its weights (scheme: {metrics['scheme']}{_by_layer(metrics)}). The mask and the initial weights were "
            "found before training and without labels by Neural Tangent Transfer, which gives a sparse network the "
            "outputs and the tangent kernel of a dense one. The sparse initialization and the trained network are both "
            "included."
        ),
        _usage(metrics),
        _overview(metrics),
        f"## Test accuracy after {metrics['train']['epochs']} epochs",
        _table(
            ("method", "scheme", "seeds", "test accuracy, %"),
            [_accuracies(row, methods.method(metrics["recipe"])) for row in methods.compared(metrics)],
        ),
        _fill(
            f"{ALIKE if len(metrics['compared']) > 1 else ''}The published weights are those of seed {metrics['seed']} "
            f"({_percent(metrics['chosen']['test_accuracy'])}), chosen by validation accuracy "
            f"({_percent(metrics['chosen']['validation_accuracy'])})."
        ),
        "## Size and speed",
        _table(("layer", "weights", "kept", "density", "multiply-adds, dense", "sparse"), _layers(metrics)),
        _fill(
            f"The theoretical speedup is {metrics['speedup']['theoretical']:.1f}x; without weights that are on no path "
            f"from input to output, {metrics['speedup']['without_dead']:.1f}x."
        ),
        _measured(metrics),
        _fill(
            f"As C (`nttzoo export {metrics['name']} net.c`), the network takes {_kilobytes(metrics['c'], '')}; the "
            f"dense one would take {_kilobytes(metrics['c'], 'dense_')}. On {metrics['c']['images']} test images the "
            f"outputs of the C code differ from those in JAX by at most {metrics['c']['difference']:.0e} of the "
            "largest output."
        ),
        "## How it was made",
        _fill(
            f"Recipe {_recipe(metrics)}; seed {metrics['seed']}; "
            f"{metrics['search_steps']:,} search steps on the unlabeled training images; then "
            f"{metrics['train']['epochs']} epochs of Adam with labels"
            f"{'' if metrics['train']['dropout'] else ', without dropout'}. `recipe.toml` has all values. The kernel "
            "distance, the mean squared difference between the tangent kernels of the sparse and the dense network on "
            f"held-out images, is {metrics['kernel_after']:.4g}; for the dense network merely pruned to this density "
            f"it is {metrics['kernel_before']:.4g}. The command:"
        ),
        f"    {metrics['command']}",
        *_renamed(metrics["recipe"]),
        "## Limits",
        _limits(metrics),
        "## License and citation",
        f"Weights: Apache-2.0. License of the training data: {metrics['licence']}.",
        f"```bibtex\n{CITATION}\n```",
    ]
    return "\n\n".join(sections) + "\n"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _mean(metrics: dict[str, Any], method: str) -> str | None:
    """The mean test accuracy in % of a method that the entry was compared with."""
    found = [row for row in metrics["compared"] if row["method"] == method]
    return f"{100 * methods.mean(found[0]):.2f}" if found else None


def _overview(metrics: dict[str, Any]) -> str:
    """The figures that one would choose a network by, beside those of the dense network."""
    total, sizes = metrics["speedup"]["total"], metrics["c"]
    weights, kept = (f"{sum(layer[key] for layer in metrics['layers']):,}" for key in ("size", "kept"))
    dense, random = (_mean(metrics, method) for method in ("dense", "random"))
    sparse_c, dense_c = (f"{sizes[f'{which}table_bytes'] / 1000:.1f} kB" for which in ("", "dense_"))
    rows = [
        ("test accuracy", f"**{_percent(metrics['chosen']['test_accuracy'])}**", f"{dense} %" if dense else "-"),
        ("weights", kept, weights),
        (
            "multiply-adds",
            f"{total['sparse']:,} ({metrics['speedup']['theoretical']:.1f}x fewer)",
            f"{total['dense']:,}",
        ),
        ("size of the weights as C", sparse_c, dense_c),
    ]
    if metrics.get("runtimes"):
        own, whole = (metrics["runtimes"][part]["1"]["1"] for part in ("own", "dense"))
        rows += [
            (f"one image in {RUNTIMES[key]}", f"{1000 * own[key]:.1f} µs", f"{1000 * whole[key]:.1f} µs")
            for key in ("nttzoo_c", "onnxruntime")
            if key in own and key in whole
        ]
    text = f"\n\nWith a random mask of the same density, test accuracy is {random} %." if random else ""
    return _table(("", "this network", "dense network"), rows) + text


def _recipe(metrics: dict[str, Any]) -> str:
    """What the search did, from the values of the recipe."""
    recipe, start = metrics["recipe"], metrics["recipe"].get("start_density")
    kept = (metrics.get("densities") or {"*": metrics["density"]}).values()
    note = ""
    if start and start > min(kept):
        note = f" (density falling from {100 * start:.6g} %)"
    elif start:
        note = f" (at this density without effect, as it starts at {100 * start:.6g} %)"
    return f"`{methods.method(recipe)}`{note}"


def _renamed(recipe: dict[str, Any]) -> list[str]:
    """A note if the name in the entry's files is not what the recipe would be called now."""
    name = recipe["name"]
    if name == methods.method(recipe).partition(",")[0]:
        return []
    now = ", a name that now stands for another recipe" if name in recipes.NAMES else ""
    return [_fill(f"The command and `recipe.toml` call the recipe `{name}`{now}.")]


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
    shape = ", ".join(map(str, metrics["input_shape"]))
    inputs = f"images: uint8 [n, {shape}]" if len(metrics["input_shape"]) == 3 else f"inputs: float32 [n, {shape}]"
    lines = [
        "```python",
        "import nttzoo",
        "",
        *note,
        f'model = nttzoo.load("{name}", weights="trained"{factory})',
        f"logits = model(model.input_spec.standardize({inputs.partition(':')[0]}))  # {inputs}",
        "",
        f'sparse = nttzoo.load("{name}"{factory})  # the sparse initialization, to train yourself',
        "```",
        "",
        _fill(
            "For other runtimes, `model.onnx` beside this card holds the trained network: weights as sparse "
            f"initializers, inputs as float32 [batch, {shape}], with mean, std and class names in its metadata. "
            f"OpenVINO and DeepSparse need dense weights: `nttzoo export {name} model.onnx --dense`."
        ),
    ]
    return "\n".join(lines)


def _kilobytes(sizes: dict[str, Any], which: str) -> str:
    flash, ram = (sizes[f"{which}{part}_bytes"] / 1000 for part in ("table", "arena"))
    return f"{flash:.1f} kB of tables (flash) and {ram:.1f} kB of working memory (RAM)"


def _limits(metrics: dict[str, Any]) -> str:
    return "\n".join(_fill(f"- {limit}", indent="  ") for limit in limits.limits(metrics))


def _measured(metrics: dict[str, Any]) -> str:
    """Measured times beside the dense network's, where there are any."""
    if not metrics.get("runtimes"):
        return "The speed of this network was not measured."
    own, dense = metrics["runtimes"]["own"], metrics["runtimes"]["dense"]
    rows = []
    for key, runtime in RUNTIMES.items():
        cells = []
        for batch, threads in MEASURED:
            if all(key in part[batch][threads] for part in (own, dense)):
                times = [1000 * part[batch][threads][key] / int(batch) for part in (own, dense)]
                cells += [f"{times[0]:.1f}", f"{times[1]:.1f}"]
        if cells:
            rows.append((runtime, *cells))
    columns = ("microseconds per image", "1 image, 1 thread", "dense", "64 images, 2 threads", "dense")
    text = (
        f"Measured on {metrics['runtimes']['machine']}. ONNX Runtime and OpenVINO treat zeros as ordinary weights; "
        "nttzoo's C and DeepSparse (discontinued) skip them."
    )
    return f"{_table(columns, rows)}\n\n{_fill(text)}"


def _fill(text: str, indent: str = "") -> str:
    return textwrap.fill(text, 120, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


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
    rows = []
    for m in entries:
        rows.append(
            (
                f"[{m['name']}](models/{m['name']}/README.md)",
                f"{100 * m['chosen']['test_accuracy']:.2f}",
                *(_mean(m, method) or "-" for method in ("dense", "random")),
                f"{m['speedup']['theoretical']:.1f}x",
                f"{m['c']['table_bytes'] / 1000:.1f} kB",
                methods.method(m["recipe"]),
                f"{m['recipe']['epochs']} + {m['train']['epochs']}",
                f"{m['kernel_before']:.4g} -> {m['kernel_after']:.4g}",
            )
        )
    columns = ("network", "test accuracy, %", "dense", "random mask", "theoretical speedup", "weights as C")
    sections = [
        "# The zoo",
        "Sparse networks found before training and without labels by Neural Tangent Transfer.",
        "```python\nimport nttzoo\n\n"
        'model = nttzoo.load("lenet300-mnist-1pct-global", weights="trained")\n'
        'sparse = nttzoo.load("lenet300-mnist-1pct-global")  # the sparse initialization, to train yourself\n```',
        _fill(
            "Names say architecture, data set, percentage of weights kept, and sparsity scheme. Accuracies of dense "
            "networks and random masks of the same density are means over seeds after equal training; each card has "
            "more methods. The theoretical speedup counts multiply-adds; most runtimes gain less, many nothing (each "
            "card has what was measured). Epochs are those of search and training. The kernel distance to the dense "
            "network is that of its plainly pruned copy and, after the arrow, that of the network found."
        ),
        _table((*columns, "recipe", "epochs", "kernel distance"), rows),
        "Weights: Apache-2.0. Each card names the license of its training data. `nttzoo publish` makes this file from "
        "the entries' metrics.json: do not edit it.",
    ]
    return "\n\n".join(sections) + "\n"
