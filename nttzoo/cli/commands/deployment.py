"""Commands that take networks elsewhere and say what they cost."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from nttzoo.cli.commands.options import density_of
from nttzoo.errors import OptionError


def export(options: argparse.Namespace) -> None:
    """Writes a network as an ONNX file, as C, as WebAssembly or as a folder for the Hugging Face Hub."""
    from nttzoo import codegen, export, zoo

    published = options.name in zoo.list_models()
    model = options.name if published or not Path(options.name).exists() else Path(options.name)
    chosen = {key: value for key in ("opset", "layout", "batch") if (value := getattr(options, key)) is not None}
    suffix = Path(options.out).suffix
    kind = options.format or {".c": "c", ".wasm": "wasm"}.get(suffix, "onnx")
    if kind == "hub":
        if chosen or options.dense or options.training or options.weights:
            raise OptionError("--format hub writes all weights of a published network and takes no other options.")
        print(export.export_hub(options.name, options.out))
        return
    if kind in ("c", "wasm"):
        if chosen or options.dense:
            given = ", ".join(f"--{key}" for key in (*chosen, *(["dense"] if options.dense else [])))
            raise OptionError(f"{given}: of ONNX only. C takes images as the network does, one by one or many.")
        if options.training:
            from nttzoo.codegen import training, wasm

            write = training.export_training_c if kind == "c" else wasm.export_training_wasm
            print(write(zoo.load(model, weights=options.weights or "init"), options.out))
        elif kind == "wasm":
            from nttzoo.codegen import wasm

            print(wasm.export_wasm(model, options.out, weights=options.weights or "trained"))
        else:
            print(codegen.export_c(model, options.out, weights=options.weights or "trained"))
        return
    if options.training:
        raise OptionError("--training writes C or WebAssembly: name a FILE that ends in .c or .wasm.")
    if options.batch and options.batch.isdecimal():
        chosen["batch"] = int(options.batch)
    print(
        export.export_onnx(model, options.out, sparse=not options.dense, weights=options.weights or "trained", **chosen)
    )


def device(options: argparse.Namespace) -> None:
    """Runs published networks on an emulated microcontroller."""
    from nttzoo._util import console, provenance
    from nttzoo.codegen import device

    if options.out:
        provenance.check_writable(options.out)
    dataset = None
    if options.data:
        from nttzoo import data

        dataset = data.load(options.data, data_dir=options.data_dir, download=options.download)
    seen = [device.check(name, images=options.images, dataset=dataset) for name in options.names]
    if options.out:
        provenance.write_json(options.out, {"networks": seen, **provenance.origin()})
    if options.json:
        print(json.dumps(seen))
        return

    def kilobytes(size: int) -> str:
        return f"{size / 1000:.1f} kB"

    rows = [
        (one["name"], *(kilobytes(part[key]) for key in ("flash_bytes", "ram_bytes") for part in (one, one["dense"])))
        for one in seen
    ]
    print(console.table(f"on {seen[0]['board']}", ("network", "flash", "dense", "RAM", "dense"), rows))
    for one in seen:
        answers = f"on {one['inputs']}, {' '.join(one['predictions'])}"
        print(f"{one['name']}: {answers}, as JAX says (difference {one['difference']:.0e})")


def speedup(options: argparse.Namespace) -> None:
    """Prints what a network costs: a published one, one's own, or one that is made and pruned here."""
    from nttzoo.sparsity import cost

    model, what = _named_network(options) if options.name else _pruned_network(options)
    report = cost.speedup(model)
    if options.json:
        print(json.dumps({"network": what, **report.to_dict()}))
    else:
        print(f"{what}\n{report}")


def _named_network(options: argparse.Namespace) -> tuple[Any, str]:
    from nttzoo.cli import networks

    if options.prune != "dense" or options.density is not None:
        raise OptionError(f"{options.name} is pruned already: leave out --prune and --density.")
    found = networks.find(options.name)
    model = networks.load(found, model=options.model, data=options.data, weights=options.weights or "init")
    where = "the folder" if isinstance(found, Path) else "the published network"
    return model, f'the weights "{options.weights or "init"}" of {where} {found}'


def _pruned_network(options: argparse.Namespace) -> tuple[Any, str]:
    from nttzoo import architectures
    from nttzoo.data import SOURCES
    from nttzoo.sparsity import pruning

    if options.weights:
        raise OptionError("--weights chooses those of a network with a NAME; --model makes new ones.")
    shapes: dict[str, Any] = {}
    if options.data:
        source = SOURCES[options.data]
        shapes = {"num_classes": len(source.classes), "input_shape": source.input_shape}
    model = architectures.create(options.model, rngs=options.seed, **shapes)
    if options.prune != "dense" and pruning.METHODS[options.prune].needs in ("images", "labels"):
        free = [name for name, method in pruning.METHODS.items() if method.needs in ("nothing", "shape")]
        raise OptionError(f"{options.prune!r} needs data; `speedup` takes {', '.join(free)}.")
    where: dict[str, Any] = {"density": density_of(options), "scheme": options.scheme, "exclude": options.dense_layers}
    if options.prune == "dense":
        return model, f"a new {options.model}, dense"
    pruning.prune(model, options.prune, **where, rngs=options.seed)
    return model, f"a new {options.model}, pruned: {options.prune}, {options.scheme}, seed {options.seed}"
