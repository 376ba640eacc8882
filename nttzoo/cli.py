"""The `nttzoo` command: argument parsing and one call each."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from nttzoo import __version__
from nttzoo.errors import NttzooError

# Names are checked by the registries behind them, which know the near misses; importing those takes seconds, so
# `--help` does without.
Handler = Callable[[argparse.Namespace], None]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; exits with 2 and one line on stderr if something is wrong with the arguments."""
    parsed = _parser().parse_args(arguments)
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        parsed.run(parsed)
    except NttzooError as error:
        print(f"nttzoo: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("nttzoo: interrupted", file=sys.stderr)
        sys.exit(130)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("nttzoo", description="Sparse networks that train: make, prune, train, count.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = _command(commands, "train", _train, "prune a network and train it on labelled images")
    _model_options(train)
    train.add_argument("--data", default="mnist5k", help="mnist5k (embedded), mnist, fashion_mnist, cifar10 or svhn")
    _data_options(train)
    train.add_argument("--epochs", type=int, default=50, help="passes over the training set (default: 50)")
    train.add_argument("--batch-size", type=int, default=64, help="images per step (default: 64)")
    train.add_argument("--learning-rate", type=float, default=1e-3, help="(default: 0.001)")
    train.add_argument("--optimizer", default="adam", help="adam or sgd (default: adam)")
    train.add_argument("--loss", default="cross_entropy", help="cross_entropy or squared (default: cross_entropy)")
    train.add_argument("--validation", type=float, default=0.1, help="fraction held out (default: 0.1)")
    train.add_argument("--out", metavar="FILE", help="write history and summary as JSON")

    speedup = _command(commands, "speedup", _speedup, "multiply-adds of a sparse network and what it could save")
    _model_options(speedup)
    speedup.add_argument("--json", action="store_true", help="print JSON instead of a table")

    bench = _command(commands, "bench", _bench, "measure speed against a peer")
    bench.add_argument("what", choices=["train", "ntk"], help="train: Conv-4 steps against PyTorch; ntk: kernel steps")
    bench.add_argument("--peer-python", required=True, help="Python of an environment that has the peer installed")
    bench.add_argument("--growth", action="store_true", help="ntk: also over batches of 16 to 256 (ten minutes more)")
    bench.add_argument("--out", metavar="FILE", help="write the result as JSON")
    return parser


def _command(commands: Any, name: str, run: Handler, summary: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
    parser.set_defaults(run=run)
    return parser


def _model_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="lenet300", help="lenet300, lenet5 or conv4 (default: lenet300)")
    parser.add_argument(
        "--prune",
        metavar="METHOD",
        default="dense",
        help="random, scaled_random, magnitude, snip, logit_snip, or dense (default: no pruning)",
    )
    parser.add_argument("--density", type=float, default=0.03, help="fraction of weights kept (default: 0.03)")
    parser.add_argument("--scheme", default="layerwise", help="layerwise or global (default: layerwise)")
    parser.add_argument("--seed", type=int, default=0, help="seeds weights, masks, split, order, dropout (default: 0)")


def _data_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", help="folder of local .npz files (default: $NTTZOO_DATA or the cache folder)")
    parser.add_argument("--download", action="store_true", help="fetch missing data through tensorflow-datasets")


def _train(options: argparse.Namespace) -> None:
    from nttzoo import baselines, data, provenance, training

    if options.out:
        provenance.check_writable(options.out)
    config = training.TrainConfig(
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        optimizer=options.optimizer,
        loss=options.loss,
        validation=options.validation,
        seed=options.seed,
    )
    dataset = data.load(options.data, data_dir=options.data_dir, download=options.download)
    trained = baselines.train_baseline(
        options.model, dataset, config, method=options.prune, density=options.density, scheme=options.scheme
    )
    print(trained)
    if options.out:
        provenance.write_json(options.out, {**trained.to_dict(), **provenance.origin()})


def _speedup(options: argparse.Namespace) -> None:
    from nttzoo import architectures, cost, pruning

    model = architectures.create(options.model, rngs=options.seed)
    if options.prune in ("snip", "logit_snip"):
        raise NttzooError(f"{options.prune!r} needs data; `speedup` takes random, scaled_random or magnitude.")
    if options.prune != "dense":
        pruning.prune(model, options.prune, density=options.density, scheme=options.scheme, key=options.seed)
    report = cost.speedup(model)
    print(json.dumps(report.to_dict()) if options.json else report)


def _bench(options: argparse.Namespace) -> None:
    from nttzoo import provenance
    from nttzoo.bench import ntk, train

    if options.out:
        provenance.check_writable(options.out)
    if options.what == "train":
        result = train.run(peer_python=options.peer_python)
    else:
        result = ntk.run(peer_python=options.peer_python, growth=options.growth)
    print(json.dumps(result, indent=1))
    if options.out:
        provenance.write_json(options.out, result)


if __name__ == "__main__":
    main()
