"""Hyperparameters as plain data: name, type, default and help of each field, defined once.

`TrainConfig`, `SearchConfig` and `Recipe` add checks and fields that only Python can hold; the command line derives its
options from the same fields. Nothing here imports JAX, so that `--help` is instant.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

# A fraction of weights kept, or one for each glob over layer paths: the first that matches a layer counts.
Density = float | Mapping[str, float]


@dataclass(frozen=True)
class Help:
    """What an option is for, and what stands for its value in the help, such as FILE."""

    text: str
    metavar: str | None = None


class Argument(Help):
    """The same for an argument without a name, which is known by its place."""


Model = Annotated[
    str, Help("lenet300, lenet5, conv4, gru, ds_cnn, resnet20, or your own: package.module:factory or net.py:factory")
]
DataName = Annotated[
    str,
    Help(
        "mnist5k (embedded), mnist, fashion_mnist, cifar10, svhn, or your own: my.npz, a folder of images per class, "
        "or package.module:function"
    ),
]
DenseLayers = Annotated[
    tuple[str, ...],
    Help("globs over the paths of layers that stay dense, such as linear2 'conv*' (default: none)", "GLOB"),
]


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """How to train."""

    epochs: Annotated[int, Help("passes over the training set")] = 50
    batch_size: Annotated[int, Help("images per step")] = 64
    learning_rate: Annotated[float, Help("of the optimizer")] = 1e-3
    optimizer: Annotated[str, Help("adam or sgd")] = "adam"
    momentum: Annotated[float, Help("of sgd")] = 0.0
    weight_decay: Annotated[float, Help("decoupled for adam, an L2 term for sgd")] = 0.0
    loss: Annotated[str, Help("cross_entropy or squared")] = "cross_entropy"
    validation: Annotated[float, Help("fraction held out")] = 0.1
    augmentation: Annotated[str, Help("none, flip, crop or crop_flip")] = "none"
    dropout: Annotated[bool, Help("train without dropout where the network has it")] = True
    seed: Annotated[int, Help("seed of weights, masks, split, batch order and dropout")] = 0
    engine: Annotated[Literal["auto", "jax", "c"], Help("c (compiled), jax, or auto")] = "auto"


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """What to search for."""

    model: Model = "lenet300"
    data: DataName = "mnist5k"
    densities: Annotated[
        tuple[Density, ...],
        Help("fractions of weights kept, each a number or one per glob: 'conv*=0.02,*=0.1'; all share one teacher"),
    ] = (0.03,)
    schemes: Annotated[tuple[str, ...], Help("layerwise, global, erk, budget")] = ("layerwise",)
    exclude: DenseLayers = ()
    seed: Annotated[int, Help("of the dense network and the batches")] = 0


@dataclass(frozen=True, kw_only=True)
class RecipeSettings:
    """How to search."""

    epochs: Annotated[int, Help("passes over the images")]
    batch_size: Annotated[int, Help("images per step; the kernel is taken between its halves")]
    learning_rate: Annotated[float, Help("of Adam")]
    mask_every: Annotated[int, Help("steps between updates of the mask")] = 100
    kernel_weight: Annotated[float, Help("weight of the kernel distance in the loss")]
    weight_decay: Annotated[float, Help("weight of the squared weights in the loss")]
    tangents: Annotated[
        Literal["all", "active"], Help("weights whose derivatives make up the kernel: all or active")
    ] = "all"
    outputs: Annotated[int | None, Help("number of outputs to sample per step (default: all)")] = None
    start_method: Annotated[str | None, Help("label-free pruning method of the first mask, such as synflow")] = None
    mask_rule: Annotated[str, Help("how mask updates rank weights: magnitude, connected, covering, flow")] = "magnitude"
    mask_momentum: Annotated[float, Help("weight of the previous ranking in the moving average")] = 0.0
    output_loss: Annotated[Literal["squared", "reverse_kl"], Help("squared, or reverse_kl")] = "squared"
    normalize_kernels: Annotated[bool, Help("match the kernel up to a scalar factor")] = False
    active_from: Annotated[float | None, Help("fraction of the steps after which tangents are active")] = None
    start_density: Annotated[float | None, Help("gradual, ntt+: initial density")] = None
    fall: Annotated[float, Help("gradual, ntt+: fraction of the steps in which the density decreases")] = 0.6
    fall_shape: Annotated[str, Help("gradual, ntt+: geometric, linear or cubic")] = "geometric"
