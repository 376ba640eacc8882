"""Commands for deployment: export, device, speedup."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from nttzoo.cli.options import AsJson, DataOptions, Factory, Out, PruneOptions
from nttzoo.errors import OptionError
from nttzoo.settings import Argument, Help

Weights = Literal["init", "trained"]


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a network for other runtimes: ONNX, plain C, or WebAssembly."""

    name: Annotated[str, Argument("a published network, a student's folder, or (to C and wasm) an ONNX file", "NAME")]
    out: Annotated[str, Argument("such as model.onnx, model.c (with a header) or model.wasm (with model.js)", "FILE")]
    format: Annotated[
        Literal["onnx", "c", "wasm", "hub"] | None, Help("(default: by the extension of FILE, else onnx)")
    ] = None
    model: Factory = None
    weights: Annotated[Weights | None, Help("trained or init (default: trained; with --training: init)")] = None
    training: Annotated[bool, Help("C and wasm only: the training step, for learning on a device or in a page")] = False
    dense: Annotated[bool, Help("store zeros too, for runtimes that cannot read sparse ones")] = False
    opset: Annotated[int | None, Help("(default: 17)")] = None
    batch: Annotated[str | None, Help("batch size, or a name for a dynamic batch (default: B)")] = None
    layout: Annotated[str | None, Help("layout of the images: NHWC or NCHW (default: NHWC)")] = None

    def run(self) -> None:
        """Writes a network as an ONNX file, as C, as WebAssembly or as a folder for the Hugging Face Hub."""
        from nttzoo import codegen, export, zoo
        from nttzoo.cli import networks

        published = self.name in zoo.list_models()
        if not published and not Path(self.name).exists():
            networks.find(self.name)  # raises, with what the name could have been
        model = self.name if published or not Path(self.name).exists() else Path(self.name)
        chosen = {key: value for key in ("opset", "layout", "batch") if (value := getattr(self, key)) is not None}
        suffix = Path(self.out).suffix
        kind = self.format or {".c": "c", ".wasm": "wasm"}.get(suffix, "onnx")
        if kind == "hub":
            if chosen or self.dense or self.training or self.weights:
                raise OptionError("--format hub writes all weights of a published network and takes no other options.")
            if not published and Path(self.name).exists():
                raise OptionError(
                    f"{self.name} is a folder: --format hub takes a published network, since its card tells how it was "
                    "compared. `nttzoo publish` makes one of a comparison."
                )
            print(export.export_hub(self.name, self.out))
            return
        if kind in ("c", "wasm"):
            if chosen or self.dense:
                given = ", ".join(f"--{key}" for key in (*chosen, *(["dense"] if self.dense else [])))
                raise OptionError(f"{given}: of ONNX only. C takes images as the network does, one by one or many.")
            if self.training:
                from nttzoo.codegen import training, wasm

                write = training.export_training_c if kind == "c" else wasm.export_training_wasm
                print(write(zoo.load(model, weights=self.weights or "init"), self.out))
            elif kind == "wasm":
                from nttzoo.codegen import wasm

                print(wasm.export_wasm(model, self.out, weights=self.weights or "trained"))
            else:
                print(codegen.export_c(model, self.out, weights=self.weights or "trained"))
            return
        if self.training:
            raise OptionError("--training writes C or WebAssembly: name a FILE that ends in .c or .wasm.")
        if self.batch and self.batch.isdecimal():
            chosen["batch"] = int(self.batch)
        print(export.export_onnx(model, self.out, sparse=not self.dense, weights=self.weights or "trained", **chosen))


@dataclass(frozen=True, kw_only=True)
class Device(DataOptions):
    """Run published networks as C on an emulated microcontroller."""

    names: Annotated[tuple[str, ...], Argument("published networks, or folders of trained students", "NAME")]
    model: Factory = None
    data: Annotated[
        str | None, Help("data set whose test images are classified (default: the embedded digits, where they fit)")
    ] = None
    images: Annotated[int, Help("number of images to classify")] = 10
    json: AsJson = False
    out: Out = None

    def run(self) -> None:
        """Runs published networks on an emulated microcontroller."""
        from nttzoo._util import console, provenance
        from nttzoo.codegen import device

        if self.out:
            provenance.check_writable(self.out)
        dataset = None
        if self.data:
            from nttzoo import data

            dataset = data.load(self.data, **self.where)
        seen = [device.check(name, images=self.images, dataset=dataset) for name in self.names]
        if self.out:
            provenance.write_json(self.out, {"networks": seen, **provenance.origin()})
        if self.json:
            print(json.dumps(seen))
            return

        def kilobytes(size: int) -> str:
            return f"{size / 1000:.1f} kB"

        rows = [
            (
                one["name"],
                *(kilobytes(part[key]) for key in ("flash_bytes", "ram_bytes") for part in (one, one["dense"])),
            )
            for one in seen
        ]
        print(console.table(f"on {seen[0]['board']}", ("network", "flash", "dense", "RAM", "dense"), rows))
        for one in seen:
            answers = f"on {one['inputs']}, {' '.join(one['predictions'])}"
            print(f"{one['name']}: {answers}, as in JAX (difference {one['difference']:.0e})")


@dataclass(frozen=True, kw_only=True)
class Speedup(PruneOptions):
    """Count the multiply-adds of a sparse network and the theoretical speedup."""

    name: Annotated[
        str | None,
        Argument(
            "a published network, or the folder of a student or of nttzoo.save (default: make one, see --model)", "NAME"
        ),
    ] = None
    weights: Annotated[Weights | None, Help("weights of the network NAME: init or trained (default: init)")] = None
    seed: Annotated[int, Help("seeds weights and masks")] = 0
    data: Annotated[str | None, Help("data set that gives shape and classes (default: the network's own)")] = None
    json: AsJson = False

    def run(self) -> None:
        """Prints the cost of a network: published, saved, or created and pruned here."""
        from nttzoo.sparsity import cost

        model, what = self._named_network(self.name) if self.name else self._pruned_network()
        report = cost.speedup(model)
        if self.json:
            print(json.dumps({"network": what, **report.to_dict()}))
        else:
            print(f"{what}\n{report}")

    def _named_network(self, name: str) -> tuple[Any, str]:
        from nttzoo.cli import networks

        if self.prune != "dense" or self.density is not None:
            raise OptionError(f"{name} is pruned already: leave out --prune and --density.")
        found = networks.find(name)
        model = networks.load(found, model=self.model, data=self.data, weights=self.weights or "init")
        where = "the folder" if isinstance(found, Path) else "the published network"
        return model, f'the weights "{self.weights or "init"}" of {where} {found}'

    def _pruned_network(self) -> tuple[Any, str]:
        from nttzoo import architectures
        from nttzoo.data import SOURCES
        from nttzoo.sparsity import pruning

        if self.weights:
            raise OptionError("--weights chooses those of a network with a NAME; --model makes new ones.")
        shapes: dict[str, Any] = {}
        if self.data:
            source = SOURCES[self.data]
            shapes = {"num_classes": len(source.classes), "input_shape": source.input_shape}
        model = architectures.create(self.model, rngs=self.seed, **shapes)
        if self.prune != "dense" and pruning.METHODS[self.prune].needs in ("images", "labels"):
            free = [name for name, method in pruning.METHODS.items() if method.needs in ("nothing", "shape")]
            raise OptionError(f"{self.prune!r} needs data; `speedup` takes {', '.join(free)}.")
        where = self.pruned
        if self.prune == "dense":
            return model, f"a new {self.model}, dense"
        pruning.prune(model, self.prune, **where, rngs=self.seed)
        return model, f"a new {self.model}, pruned: {self.prune}, {self.scheme}, seed {self.seed}"
