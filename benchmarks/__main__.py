"""`python -m benchmarks`, or `python scripts/bench.py`: our speed against peers."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks import codegen, coverage, estimators, ntk, plots, runtime, search, selfcheck, train, wasm
from nttzoo._util import provenance
from nttzoo.cli import execute
from nttzoo.errors import OptionError


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one benchmark; mistakes end as those of the `nttzoo` command do."""
    execute(make_parser(), arguments)


def make_parser() -> argparse.ArgumentParser:
    """The arguments of a benchmark."""
    bench = argparse.ArgumentParser("bench", description="Measure speed against a peer.")
    bench.set_defaults(run=run)
    what = (
        "train: training steps over density, against PyTorch and SparseProp; "
        "ntk: kernel steps against neural-tangents; estimators: sampled outputs "
        "against all; search: the loop itself; selfcheck: what the kernel's check of itself costs; "
        "runtime: sparse networks in ONNX Runtime, OpenVINO, DeepSparse and as C; codegen: what makes the C fast; "
        "coverage: which ONNX graphs become C; wasm: WebAssembly against onnxruntime-web"
    )
    names = ["train", "ntk", "estimators", "search", "selfcheck", "runtime", "codegen", "coverage", "wasm"]
    bench.add_argument("what", choices=names, help=what)
    bench.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="runtime, wasm: published networks (default: random masks, three of them); coverage: folders",
    )
    bench.add_argument("--peer-python", help="Python of the environment that has the peer: PyTorch, DeepSparse ...")
    bench.add_argument("--peer-node", metavar="FOLDER", help="wasm: where `npm install onnxruntime-web` was run")
    bench.add_argument("--json", action="store_true", help="runtime, codegen, estimators: print JSON instead of tables")
    bench.add_argument("--growth", action="store_true", help="ntk: also over batches of 16 to 256 (ten minutes more)")
    bench.add_argument("--out", metavar="FILE", help="write the result as JSON")
    return bench


def run(options: argparse.Namespace) -> None:
    """Measures and prints; the file is written first."""
    if options.out:
        provenance.check_writable(options.out)
    if options.what in ("train", "ntk") and not options.peer_python:
        raise OptionError("name the peer's environment with --peer-python.")
    if options.names and options.what not in ("runtime", "coverage", "wasm"):
        raise OptionError(f"`bench {options.what}` takes no names of networks.")
    if options.what == "runtime":
        result = runtime.run(options.names, peer_python=options.peer_python)
        if options.out:
            plots.runtimes(result, Path(options.out).with_suffix(".png"))
    elif options.what == "wasm":
        if not options.peer_node:
            raise OptionError("name the folder of onnxruntime-web with --peer-node.")
        result = wasm.run(options.names, peer_node=options.peer_node)
    elif options.what == "coverage":
        result = coverage.run(options.names)
    elif options.what == "codegen":
        result = codegen.run()
    elif options.what == "estimators":
        result = estimators.run()
    elif options.what == "search":
        result = search.run()
    elif options.what == "selfcheck":
        result = selfcheck.run()
    elif options.what == "train":
        result = train.run(peer_python=options.peer_python)
        if options.out:
            plots.training(result, Path(options.out).with_suffix(".png"))
    else:
        result = ntk.run(peer_python=options.peer_python, growth=options.growth)
    if options.out:
        provenance.write_json(options.out, result)
    tables = {
        "runtime": runtime.tables,
        "codegen": codegen.tables,
        "estimators": estimators.tables,
        "train": train.table,
    }
    tables |= {"coverage": coverage.tables, "wasm": wasm.table}
    if options.what in tables and not options.json:
        print(tables[options.what](result))
    else:
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
