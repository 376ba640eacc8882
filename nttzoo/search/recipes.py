"""Hyperparameters of the search per architecture and data set, as data: the paper's, and ours.

`ntt` is the paper's method with its authors' values. `gradual` is the same, except that the density falls from a start
value to the target over the first part of the search. `ntt+` is `gradual` with masks that keep every output connected
(`covering`). `visual` is the paper's section 4.1: full-batch on 500 images.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nttzoo._util.checks import check_choice, check_count, check_flag, check_number, check_text
from nttzoo.architectures import ARCHITECTURES
from nttzoo.architectures.own import Factory
from nttzoo.data import SOURCES
from nttzoo.errors import OptionError, UnknownName
from nttzoo.registry import Registry
from nttzoo.search.mask_rules import MASK_RULES
from nttzoo.search.objective import LossCoefficients
from nttzoo.settings import RecipeSettings
from nttzoo.sparsity.density import check_density
from nttzoo.sparsity.pruning import METHODS

# (start density, target density, progress 0 ... 1) -> density
Fall = Callable[[float, float, float], float]
FALLS: Registry[Fall] = Registry("fall_shape")


@FALLS.register("geometric")
def geometric(start: float, target: float, progress: float) -> float:
    """The same factor at each refresh of the mask."""
    return start * (target / start) ** progress


@FALLS.register("linear")
def linear(start: float, target: float, progress: float) -> float:
    """The same number of weights at each refresh."""
    return start + (target - start) * progress


@FALLS.register("cubic")
def cubic(start: float, target: float, progress: float) -> float:
    """Fast at first, slow toward the end."""
    return target + (start - target) * (1 - progress) ** 3


@dataclass(frozen=True, kw_only=True)
class Recipe(RecipeSettings):
    """How to search.

    Args:
      kernel_weight: weight of the kernel distance in the loss (gamma^2 in the paper).
      weight_decay: of the surviving weights in the loss (beta in the paper).
      name: what the recipe is called in files.
      epochs: passes over the images.
      batch_size: images per step of Adam; even, as the kernel is taken between the batch's halves.
      learning_rate: of Adam.
      mask_every: steps between updates of the mask.
      tangents: "all" or "active", as in `empirical_ntk`.
      outputs: number of outputs per image and step for the kernel (None: all).
      start_density: the density falls from here to the target (None: the target from the start).
      start_method: the pruning method of the first mask, which must need no labels (None: magnitude, and Logit-SNIP
        where layers compete).
      fall: fraction of the steps over which the density falls.
      fall_shape: "geometric", "linear" or "cubic".
      mask_rule: how later masks rank weights (see `nttzoo.search.mask_rules`).
      mask_momentum: how much of the ranking is that of the previous mask.
      output_loss: how far outputs are apart: "squared" differences, or "reverse_kl", the divergence of the student's
        softmax from the teacher's.
      normalize_kernels: whether the student's kernel counts up to a factor.
      active_from: from this fraction of the steps on, the kernel has the tangents of surviving weights only.
      held_out: this fraction of the images, but at least 64, is held out to report kernel distances on.

    Example:
      >>> recipe = Recipe(
      ...     name="mine", epochs=1, batch_size=64, learning_rate=5e-4, kernel_weight=1e-3, weight_decay=1e-4
      ... )
    """

    name: str
    held_out: float = 0.002

    def __post_init__(self) -> None:
        check_text("name", self.name)
        for field in ("epochs", "mask_every"):
            check_count(field, getattr(self, field))
        check_count("batch_size", self.batch_size, least=0)
        if self.batch_size < 2 or self.batch_size % 2:
            even = max(self.batch_size // 2 * 2, 2)
            raise OptionError(
                f"batch_size is {self.batch_size}; a kernel is taken between its two halves, so it must be even: "
                f"for example {even} or {even + 2}."
            )
        check_number("learning_rate", self.learning_rate, "positive", 0)
        for field in ("kernel_weight", "weight_decay"):
            check_number(field, getattr(self, field), "a number, 0 or more", 0)
        check_choice("tangents", self.tangents, ("all", "active"))
        if self.outputs is not None:
            check_count("outputs", self.outputs)
        if self.start_density is not None:
            check_density(self.start_density, "start_density")
        if self.start_method is not None and METHODS[self.start_method].needs == "labels":
            free = ", ".join(name for name, method in METHODS.items() if method.needs != "labels")
            raise OptionError(
                f"start_method {self.start_method!r} needs labels, a search has none. Choose from: {free}."
            )
        check_number("fall", self.fall, "the fraction of the steps in which the density falls, in (0, 1]", 0, 1)
        check_number("held_out", self.held_out, "a fraction in [0, 1)", 0, 1)
        FALLS[self.fall_shape]
        MASK_RULES[self.mask_rule]
        check_number("mask_momentum", self.mask_momentum, "a fraction in [0, 1)", 0, 1)
        check_choice("output_loss", self.output_loss, ("squared", "reverse_kl"))
        check_flag("normalize_kernels", self.normalize_kernels)
        if self.active_from is not None:
            check_number("active_from", self.active_from, "a fraction of the steps in [0, 1)", 0, 1)

    @property
    def coefficients(self) -> LossCoefficients:
        """What the loss is made of."""
        names = [field.name for field in dataclasses.fields(LossCoefficients)]
        return LossCoefficients(**{name: getattr(self, name) for name in names})

    def change(self, **values: object) -> Recipe:
        """The same recipe with some values changed; those that are None stay."""
        given = {field: value for field, value in values.items() if value is not None}
        return dataclasses.replace(self, **given)  # type: ignore[arg-type]


_LENET300 = Recipe(name="ntt", epochs=20, batch_size=64, learning_rate=5e-4, kernel_weight=1e-3, weight_decay=1e-4)
_LENET5 = _LENET300.change(weight_decay=1e-5)
_CONV4 = _LENET300.change(batch_size=32, weight_decay=1e-8)
_VISUAL = Recipe(
    name="visual", epochs=5000, batch_size=500, learning_rate=1e-3, kernel_weight=1e-5, weight_decay=0.0, held_out=0.0
)
# The embedded sample has a twelfth of MNIST's images: more epochs make up for some of the steps.
_SMALL = {"epochs": 50}
VARIANTS: dict[str, dict[str, Any]] = {
    "ntt": {},
    "gradual": {"start_density": 0.05},
    "ntt+": {"start_density": 0.05, "mask_rule": "covering"},
}
NAMES = tuple(VARIANTS)

PAPER: dict[tuple[str, str], Recipe] = {
    ("lenet300", "mnist"): _LENET300,
    ("lenet300", "fashion_mnist"): _LENET300,
    ("lenet300", "mnist5k"): _LENET300.change(**_SMALL),
    ("lenet5", "mnist"): _LENET5,
    ("lenet5", "fashion_mnist"): _LENET5,
    ("lenet5", "mnist5k"): _LENET5.change(**_SMALL),
    ("conv4", "cifar10"): _CONV4,
    ("conv4", "svhn"): _CONV4,
}
# Networks that the paper does not have: sampled outputs and few epochs, for searches of half an hour on two cores.
_GRU = _CONV4.change(outputs=2, epochs=3)
_CONVOLUTIONAL = _CONV4.change(outputs=1, epochs=1)
OURS: dict[tuple[str, str], Recipe] = {
    ("gru", "mnist"): _GRU,
    ("gru", "mnist5k"): _GRU.change(epochs=20),
    ("ds_cnn", "fashion_mnist"): _CONVOLUTIONAL,
    ("ds_cnn", "mnist5k"): _CONVOLUTIONAL.change(epochs=5),
    ("resnet20", "cifar10"): _CONVOLUTIONAL,
}
# For custom networks and data.
GENERAL = _CONV4.change(outputs=2, epochs=5)
VISUAL: dict[str, Recipe] = {
    "lenet300": _VISUAL,
    "lenet5": _VISUAL.change(learning_rate=5e-4, kernel_weight=1e-6),
}
FALL_FIELDS = ("start_density", "fall", "fall_shape")


def find(name: str, model: str, data: str) -> Recipe:
    """Finds the recipe of an architecture on a data set.

    Args:
      name: "ntt", "gradual" or "ntt+".
      model: the architecture.
      data: the data set.

    Returns:
      The recipe.

    Raises:
      UnknownName: if there is no such recipe, architecture or data set.
      OptionError: if there is no recipe for the two.

    Example:
      >>> short = nttzoo.recipes.find("ntt", "lenet300", "mnist").change(epochs=1)
    """
    if not isinstance(name, str) or name not in NAMES:
        raise UnknownName("recipe", name, NAMES)
    known_recipes = PAPER | OURS
    if isinstance(ARCHITECTURES[model], Factory) or SOURCES[data].dataset is not None:
        classes = len(SOURCES[data].classes)
        return GENERAL.change(name=name, outputs=min(2, classes), **VARIANTS[name])
    if (model, data) not in known_recipes:
        known = [d for m, d in known_recipes if m == model]
        raise OptionError(
            f"there is no recipe for {model} on {data}; "
            + (f"{model} has recipes for {' and '.join(known)} (--data). " if known else "")
            + "For anything else, give nttzoo.search.SearchConfig a nttzoo.search.recipes.Recipe of your own."
        )
    return known_recipes[model, data].change(name=name, **VARIANTS[name])
