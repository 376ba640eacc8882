"""The arguments of the `nttzoo` command."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

from nttzoo import __version__
from nttzoo.cli import commands as does

# Names are checked by the registries behind them, which know the near misses; importing those takes seconds, so
# `--help` does without.
Handler = Callable[[argparse.Namespace], None]

_MODEL = "lenet300, lenet5, conv4, gru, ds_cnn, resnet20, or your own: package.module:factory or net.py:factory"
_DATA = (
    "mnist5k (embedded), mnist, fashion_mnist, cifar10, svhn, or your own: my.npz, a folder of images per class, or "
    "package.module:function (default: mnist5k)"
)
_FACTORY = "the factory of a network of your own: package.module:factory or net.py:factory"


def make_parser() -> argparse.ArgumentParser:
    """All commands and their options."""
    parser = argparse.ArgumentParser("nttzoo", description="Sparse networks that train: make, prune, train, count.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = _command(commands, "train", does.train, "prune a network and train it on labeled images")
    _model_options(train)
    train.add_argument("--data", default="mnist5k", help=_DATA)
    train.add_argument(
        "--start",
        metavar="NAME",
        help="train a published network, or the folder of a student or of nttzoo.save, in place of --prune",
    )
    _data_options(train)
    train.add_argument("--epochs", type=int, default=50, help="passes over the training set (default: 50)")
    train.add_argument("--batch-size", type=int, default=64, help="images per step (default: 64)")
    train.add_argument("--learning-rate", type=float, default=1e-3, help="(default: 0.001)")
    train.add_argument("--optimizer", default="adam", help="adam or sgd (default: adam)")
    train.add_argument("--momentum", type=float, default=0.0, help="of sgd (default: 0)")
    train.add_argument("--weight-decay", type=float, default=0.0, help="(default: 0)")
    train.add_argument("--engine", default="auto", help="c (compiled), jax, or auto (default: auto)")
    train.add_argument("--loss", default="cross_entropy", help="cross_entropy or squared (default: cross_entropy)")
    train.add_argument("--augmentation", default="none", help="none, flip, crop or crop_flip (default: none)")
    train.add_argument("--validation", type=float, default=0.1, help="fraction held out (default: 0.1)")
    _dropout_option(train)
    train.add_argument("--out", metavar="FILE", help="write history and summary as JSON")

    _search_parser(commands)

    compare = _command(commands, "compare", does.compare, "search, prune and train by several methods, side by side")
    compare.add_argument("--model", default="lenet300", help=f"{_MODEL} (default: lenet300)")
    compare.add_argument("--data", default="mnist5k", help=_DATA)
    _data_options(compare)
    methods = "all; or ntt, gradual, ntt+, dense, and pruning methods"
    _several(compare, "--methods", str, ["ntt", "gradual", "random"], methods)
    _several(compare, "--controls", str, [], "also with a part replaced: shuffled, reinitialized, magnitude_mask")
    _several(compare, "--density", float, [0.03], "fractions of weights kept")
    _several(compare, "--scheme", str, ["layerwise"], "layerwise, global, erk, budget")
    _dense_layers_option(compare)
    _several(compare, "--seeds", int, [0], "one network, search and training each")
    compare.add_argument("--train-epochs", type=int, default=50, help="of the supervised phase (default: 50)")
    _dropout_option(compare)
    _recipe_options(compare)
    compare.add_argument("--runs", metavar="FOLDER", default="runs", help="where searches are kept (default: runs)")
    compare.add_argument("--jobs", type=int, default=1, help="trainings side by side; 2 suit two cores (default: 1)")
    compare.add_argument("--out", metavar="FILE", required=True, help="the comparison as JSON; grows case by case")

    visual = _command(
        commands,
        "visualize",
        does.visualize,
        "follow teacher and student while they learn zeros and ones",
        ["visualise"],
    )
    visual.add_argument("--model", default="lenet300", help="lenet300 or lenet5 (default: lenet300)")
    visual.add_argument(
        "--data", default="mnist5k", help="data set whose first two classes are used (default: mnist5k)"
    )
    _data_options(visual)
    visual.add_argument("--seed", type=int, default=0, help="(default: 0)")
    visual.add_argument("--epochs", type=int, help="full-batch steps of the search (default: the paper's 5000)")
    tangents = "all or active, or both: whose derivatives a search matches"
    _several(visual, "--tangents", str, ["all"], tangents)
    visual.add_argument("--steps", type=int, default=200, help="steps of gradient descent (default: 200)")
    visual.add_argument("--runs", metavar="FOLDER", default="runs", help="where the search is kept (default: runs)")
    visual.add_argument("--out", metavar="FILE", required=True, help="the numbers as JSON, and the picture beside it")

    _reproduce_parser(commands)

    listing = _command(commands, "list", does.list_models, "the published networks")
    listing.add_argument("words", nargs="*", metavar="WORD", help="parts of names, such as conv4 svhn (default: all)")
    listing.add_argument("--data", help="only those of a data set")
    listing.add_argument("--density", type=float, help="only those of a density")
    listing.add_argument("--scheme", help="only those of a scheme")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")

    about = _command(commands, "info", does.info, "what is known of a published network")
    about.add_argument("name")
    about.add_argument("--json", action="store_true", help="print JSON instead of its card")

    verify = _command(commands, "verify", does.verify, "check every file of every published network")
    verify.add_argument("--json", action="store_true", help="print JSON")

    loads = _command(
        commands, "load-check", does.load_check, "load published networks and compare them with their cards"
    )
    loads.add_argument("names", nargs="*", metavar="NAME", help="(default: all)")
    loads.add_argument("--json", action="store_true", help="print JSON instead of a table")
    loads.add_argument("--out", metavar="FILE", help="write the figures as JSON")

    export = _command(
        commands, "export", does.export, "write a network for other runtimes: ONNX, plain C, or WebAssembly"
    )
    export.add_argument(
        "name", metavar="NAME", help="a published network, a student's folder, or (to C and wasm) an ONNX file"
    )
    export.add_argument(
        "out",
        metavar="FILE",
        help="such as model.onnx, model.c (its header goes beside it) or model.wasm (with model.js)",
    )
    export.add_argument(
        "--format", choices=["onnx", "c", "wasm", "hub"], help="(default: by the end of FILE, else onnx)"
    )
    export.add_argument("--model", help=_FACTORY)
    export.add_argument("--weights", help="trained or init (default: trained; with --training: init)")
    export.add_argument(
        "--training", action="store_true", help="C and wasm only: the training step, so that a device or page can learn"
    )
    export.add_argument(
        "--dense", action="store_true", help="store zeros too, for runtimes that cannot read sparse ones"
    )
    export.add_argument("--opset", type=int, help="(default: 17)")
    export.add_argument("--batch", help="a number, or a name for any number (default: B)")
    export.add_argument("--layout", help="of the images: NHWC or NCHW (default: NHWC)")

    device = _command(commands, "device", does.device, "run published networks as C on an emulated microcontroller")
    device.add_argument("names", nargs="+", metavar="NAME", help="published networks, or folders of trained students")
    device.add_argument("--model", help=_FACTORY)
    device.add_argument("--data", help="whose test images to classify (default: the embedded digits, where they fit)")
    _data_options(device)
    device.add_argument("--images", type=int, default=10, help="how many to classify (default: 10)")
    device.add_argument("--json", action="store_true", help="print JSON instead of a table")
    device.add_argument("--out", metavar="FILE", help="write the figures as JSON")

    publish = _command(commands, "publish", does.publish, "make entries of the zoo from finished comparisons")
    publish.add_argument("comparison", nargs="*", help="JSON files of `nttzoo compare`")
    publish.add_argument("--results", metavar="FOLDER", help="results of `nttzoo reproduce`, such as results/reproduce")
    publish.add_argument("--only", nargs="+", default=[], metavar="GLOB", help="of the results only these entries")
    publish.add_argument("--runs", metavar="FOLDER", help="where the searches are, and the weights of results")
    publish.add_argument("--runtimes", metavar="FILE", help="enter what `scripts/bench.py runtime NAME ...` measured")
    pictures = "store the tangent kernels that the gallery draws with these entries"
    publish.add_argument("--pictures", nargs="+", default=[], metavar="NAME", help=pictures)
    curves = "the same, and train each again beside a random mask, for learning curves"
    publish.add_argument("--curves", nargs="+", default=[], metavar="NAME", help=curves)
    home = os.environ.get("NTTZOO_HOME", ".")
    publish.add_argument(
        "--home", metavar="FOLDER", default=home, help="the zoo (default: $NTTZOO_HOME, or this folder)"
    )
    publish.add_argument("--model", help=_FACTORY)
    publish.add_argument("--data", help="data of your own that the comparison used: my.npz, a folder, module:function")
    _data_options(publish)

    gallery = _command(commands, "gallery", does.gallery, "write the zoo as a web page that opens from disk")
    gallery.add_argument("--out", metavar="FOLDER", required=True, help="where index.html goes")
    samples = "put test images of the data sets in this folder into the page (default: embedded digits only)"
    gallery.add_argument("--data-dir", metavar="FOLDER", help=samples)

    speedup = _command(commands, "speedup", does.speedup, "multiply-adds of a sparse network and what it could save")
    counted = "a published network, or the folder of a student or of nttzoo.save (default: make one, see --model)"
    speedup.add_argument("name", nargs="?", metavar="NAME", help=counted)
    speedup.add_argument("--weights", help="of a network with a NAME: init or trained (default: init)")
    _model_options(speedup)
    speedup.add_argument("--data", help="the data set whose shape and classes count (default: the network's own)")
    speedup.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _search_parser(commands: Any) -> None:
    summary = "find sparse networks that start and learn like a dense one, without labels"
    search = _command(commands, "search", does.search, summary)
    search.add_argument("--model", default="lenet300", help=f"the dense network: {_MODEL} (default: lenet300)")
    search.add_argument("--data", default="mnist5k", help=_DATA)
    _data_options(search)
    kept = (
        "fractions of weights kept, each a number or one per glob: 'conv*=0.02,*=0.1'; all students share one teacher"
    )
    _several(search, "--density", density, [0.03], kept)
    _several(search, "--scheme", str, ["layerwise"], "layerwise, global, erk, budget")
    _dense_layers_option(search)
    named = "ntt: the paper's; gradual: the density falls; ntt+: that, and no weight is dead (default: ntt)"
    search.add_argument("--recipe", default="ntt", help=named)
    search.add_argument("--seed", type=int, default=0, help="of the dense network and the batches (default: 0)")
    _recipe_options(search)
    search.add_argument("--out", metavar="FOLDER", help="the run's folder (default: runs/<what it is>)")
    search.add_argument("--fresh", action="store_true", help="start over instead of going on where the run stopped")
    search.add_argument("--save-every", type=float, default=60, help="seconds between saved states (default: 60)")
    search.add_argument("--dry-run", action="store_true", help="print the plan, memory and time; search nothing")
    search.add_argument("--devices", type=int, help="how many devices share each batch (default: all)")
    search.add_argument("--distributed", action="store_true", help="join other hosts (SLURM, TPU pod, JAX_* variables)")


def _reproduce_parser(commands: Any) -> None:
    parser = _command(commands, "reproduce", does.reproduce, "run the paper's experiments, as far as they are not done")
    names = "table1, table2, curves, density, tradeoff, controls, ablation, field, networks, dynamics, all"
    what = f"{names}; report: only write the report"
    parser.add_argument("experiment", metavar="EXPERIMENT", help=what)
    parser.add_argument("--budget", default="cpu", help="paper, cpu (about a day on two cores) or smoke (default: cpu)")
    parser.add_argument("--results", metavar="FOLDER", default="results/reproduce", help="(default: results/reproduce)")
    parser.add_argument("--report", metavar="FILE", default="results/REPORT.md", help="(default: results/REPORT.md)")
    runs = "finished searches are taken from these folders; new ones go to the first"
    _several(parser, "--runs", str, ["runs"], runs)
    parser.add_argument("--only", nargs="+", default=[], metavar="GLOB", help="only the cases whose names match")
    parser.add_argument("--no-search", action="store_true", help="only train what is there already")
    parser.add_argument("--dry-run", action="store_true", help="list the cases and about how long they take")
    _data_options(parser)


def _recipe_options(parser: argparse.ArgumentParser) -> None:
    values = parser.add_argument_group("values of the recipe", "left out, the recipe's own")
    values.add_argument("--epochs", type=int, help="passes over the images")
    values.add_argument("--batch-size", type=int, help="images per step; the kernel is taken between its halves")
    values.add_argument("--learning-rate", type=float, help="of Adam")
    values.add_argument("--mask-every", type=int, help="steps between refreshes of the mask")
    values.add_argument("--kernel-weight", type=float, help="of the kernel distance in the loss")
    values.add_argument("--weight-decay", type=float, help="of the squared weights in the loss")
    values.add_argument("--tangents", help="all or active: which weights' derivatives make the kernel")
    values.add_argument("--outputs", type=int, help="how many outputs to sample per step: cheaper than all")
    values.add_argument("--start-method", help="label-free pruning method of the first mask, such as synflow")
    values.add_argument("--mask-rule", help="how updates of the mask rank weights: magnitude, connected or flow")
    values.add_argument("--mask-momentum", type=float, help="how much of the ranking is that of the mask before")
    values.add_argument("--output-loss", help="squared, or reverse_kl")
    values.add_argument(
        "--normalize-kernels", action="store_true", default=None, help="match the kernel up to a factor"
    )
    values.add_argument("--active-from", type=float, help="fraction of the steps after which tangents are active")
    values.add_argument("--start-density", type=float, help="gradual, ntt+: where the density starts")
    values.add_argument("--fall", type=float, help="gradual, ntt+: fraction of the steps in which the density falls")
    values.add_argument("--fall-shape", help="gradual, ntt+: geometric, linear or cubic")


def _several(
    parser: argparse.ArgumentParser, option: str, kind: Callable[[str], Any], default: list[Any], text: str
) -> None:
    shown = " ".join(map(str, default))
    parser.add_argument(option, type=kind, nargs="+", default=default, help=f"{text} (default: {shown})")


def _command(
    commands: Any, name: str, run: Handler, summary: str, aliases: Sequence[str] = ()
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + ".", aliases=aliases
    )
    parser.set_defaults(run=run)
    return parser


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="lenet300", help=f"{_MODEL} (default: lenet300)")
    parser.add_argument(
        "--prune",
        metavar="METHOD",
        default="dense",
        help="random, scaled_random, magnitude, snip, logit_snip, or dense (default: no pruning)",
    )
    parser.add_argument(
        "--density",
        type=density,
        help="fraction of weights that --prune keeps, or one per glob: 'conv*=0.02,*=0.1' (default: 0.03)",
    )
    parser.add_argument("--scheme", default="layerwise", help="layerwise, global, erk or budget (default: layerwise)")
    _dense_layers_option(parser)
    parser.add_argument("--seed", type=int, default=0, help="seeds weights, masks, split, order, dropout (default: 0)")


def _dense_layers_option(parser: argparse.ArgumentParser) -> None:
    text = "globs over the paths of layers that stay dense, such as linear2 'conv*' (default: none)"
    parser.add_argument("--dense-layers", nargs="+", default=[], metavar="GLOB", help=text)


def density(text: str) -> float | dict[str, float]:
    """A density as people type it: 0.03, or one for each glob over layer paths, 'conv*=0.02,*=0.1'."""
    if "=" not in text:
        return float(text)
    pairs = (part.rsplit("=", 1) for part in text.split(","))
    return {pattern.strip(): float(value) for pattern, value in pairs}


def _dropout_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-dropout", action="store_true", help="train without dropout where the network has it")


def _data_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", help="folder of local .npz files (default: $NTTZOO_DATA or the cache folder)")
    parser.add_argument("--download", action="store_true", help="fetch missing data through tensorflow-datasets")
