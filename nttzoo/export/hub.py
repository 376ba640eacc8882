"""`export_hub`: a published network as a folder that uploads to the Hugging Face Hub as it is."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from nttzoo import zoo
from nttzoo._util import files
from nttzoo._util.checks import check_path, check_text
from nttzoo._util.extras import extra
from nttzoo.zoo import card, hub

ABOUT = ("name", "architecture", "dataset", "density", "scheme", "seed", "input_shape", "mean", "std", "classes")
TAGS = ["sparse", "pruning-before-training", "neural-tangent-kernel", "jax", "flax"]


def export_hub(name: str, folder: str | os.PathLike[str]) -> Path:
    """Writes a published network as a folder for the Hugging Face Hub.

    The folder has the card as README.md, config.json, `model.safetensors` with the trained weights,
    `init.safetensors` with the sparse initialization, and `model.onnx`. `nttzoo.load` reads it back.

    Args:
      name: the name of a published network.
      folder: a new or empty folder, or one that nttzoo wrote before, which is replaced atomically.

    Returns:
      The folder.

    Raises:
      UnknownName: if there is no such published network.
      RunError: if the folder holds files that nttzoo did not write.
      ExportError: if the packages of the extra `hub` are missing.

    Example:
      >>> nttzoo.export.export_hub("lenet300-mnist-1pct-global", "upload")
      >>> model = nttzoo.load("upload", weights="trained")
    """
    check_text("name", name)
    check_path("folder", folder)
    target = Path(folder)
    metrics = zoo.info(name).metrics
    with files.new_folder(target) as part:
        files.write_text(part / "README.md", _readme(metrics))
        hub.write_config(part, {key: metrics[key] for key in (*ABOUT, "factory") if key in metrics})
        for weights in hub.WEIGHTS:
            hub.write_weights(part, zoo.load(name, weights=weights), weights)  # type: ignore[arg-type]
        shutil.copyfile(zoo.onnx_file(name), part / "model.onnx")
    return target


def _readme(metrics: dict[str, Any]) -> str:
    """The card with front matter by huggingface_hub, which the Hub accepts."""
    with extra("hub"):
        from huggingface_hub import EvalResult, ModelCardData
    result = EvalResult(
        task_type="image-classification",
        dataset_type=metrics["dataset"],
        dataset_name=metrics["dataset"],
        dataset_split="test",
        metric_type="accuracy",
        metric_value=round(metrics["chosen"]["test_accuracy"], 4),
    )
    data = ModelCardData(
        license="apache-2.0",
        library_name=hub.LIBRARY,
        pipeline_tag="image-classification",
        tags=TAGS,
        datasets=[metrics["dataset"]],
        model_name=metrics["name"],
        eval_results=[result],
    )
    _, _, body = card.card(metrics).removeprefix("---\n").partition("\n---\n")
    return f"---\n{data.to_yaml()}\n---\n{body}"
