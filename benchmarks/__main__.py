"""`python -m benchmarks`, or `python scripts/bench.py`: our speed against peers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from benchmarks import (
    codegen,
    coverage,
    estimators,
    ntk,
    plots,
    runtime,
    search,
    selfcheck,
    sparse_students,
    train,
    wasm,
)
from nttzoo._util import provenance
from nttzoo.cli import execute
from nttzoo.errors import OptionError
from nttzoo.settings import Argument, Help

What = Literal[
    "train", "ntk", "estimators", "search", "sparse-students", "selfcheck", "runtime", "codegen", "coverage", "wasm"
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one benchmark; mistakes end as those of the `nttzoo` command do."""
    execute(Bench, "bench", arguments)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure speed against a peer."""

    what: Annotated[
        What,
        Argument(
            "train: training steps over density, against PyTorch and SparseProp; "
            "ntk: kernel steps against neural-tangents; estimators: sampled outputs "
            "against all; search: the loop itself; sparse-students: its steps with sparse and with dense convolutions; "
            "selfcheck: what the kernel's check of itself costs; "
            "runtime: sparse networks in ONNX Runtime, OpenVINO, DeepSparse and as C; codegen: what makes the C fast; "
            "coverage: which ONNX graphs become C; wasm: WebAssembly against onnxruntime-web"
        ),
    ]
    names: Annotated[
        tuple[str, ...],
        Argument("runtime, wasm: published networks (default: random masks, three of them); coverage: folders", "NAME"),
    ] = ()
    peer_python: Annotated[str | None, Help("Python of the environment that has the peer: PyTorch, DeepSparse ...")] = (
        None
    )
    peer_node: Annotated[str | None, Help("wasm: where `npm install onnxruntime-web` was run", "FOLDER")] = None
    json: Annotated[bool, Help("runtime, codegen, estimators: print JSON instead of tables")] = False
    growth: Annotated[bool, Help("ntk: also over batches of 16 to 256 (ten minutes more)")] = False
    out: Annotated[str | None, Help("write the result as JSON", "FILE")] = None

    def run(self) -> None:
        """Measures and prints; the file is written first."""
        if self.out:
            provenance.check_writable(self.out)
        peer = self.peer_python or ""
        if self.what in ("train", "ntk") and not peer:
            raise OptionError("name the peer's environment with --peer-python.")
        if self.names and self.what not in ("runtime", "coverage", "wasm"):
            raise OptionError(f"`bench {self.what}` takes no names of networks.")
        if self.what == "runtime":
            result = runtime.run(list(self.names), peer_python=self.peer_python)
            if self.out:
                plots.runtimes(result, Path(self.out).with_suffix(".png"))
        elif self.what == "wasm":
            if not self.peer_node:
                raise OptionError("name the folder of onnxruntime-web with --peer-node.")
            result = wasm.run(list(self.names), peer_node=self.peer_node)
        elif self.what == "coverage":
            result = coverage.run(list(self.names))
        elif self.what == "codegen":
            result = codegen.run()
        elif self.what == "estimators":
            result = estimators.run()
        elif self.what == "search":
            result = search.run()
        elif self.what == "sparse-students":
            result = sparse_students.run()
        elif self.what == "selfcheck":
            result = selfcheck.run()
        elif self.what == "train":
            result = train.run(peer_python=peer)
            if self.out:
                plots.training(result, Path(self.out).with_suffix(".png"))
        else:
            result = ntk.run(peer_python=peer, growth=self.growth)
        if self.out:
            provenance.write_json(self.out, result)
        tables = {
            "runtime": runtime.tables,
            "codegen": codegen.tables,
            "estimators": estimators.tables,
            "train": train.table,
            "sparse-students": sparse_students.table,
        }
        tables |= {"coverage": coverage.tables, "wasm": wasm.table}
        if self.what in tables and not self.json:
            print(tables[self.what](result))
        else:
            print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
