"""The paper's experiments as lists of cases, for three budgets.

`paper`: the paper's search and training. `cpu`: what two cores do in about a day; searches are shorter and sample
outputs. `smoke`: minutes, on the embedded images, to see that everything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from nttzoo.errors import UnknownName
from nttzoo.experiments.cases import Case
from nttzoo.experiments.comparison import schemes_of
from nttzoo.experiments.controls import CONTROLS
from nttzoo.search import recipes
from nttzoo.training import TrainConfig

BUDGETS = ("paper", "cpu", "smoke")
BASELINES = ("random", "scaled_random", "snip", "logit_snip")
FIVE = ("ntt", *BASELINES)
SEARCHES = ("ntt", "gradual", "ntt+")
FIELD = (*BASELINES, "magnitude", "erk", "synflow", "px", "ntk_sap", "iterative_snip", "force", "grasp")
MNISTS = ("mnist", "fashion_mnist")
DENSITIES = (0.01, 0.02, 0.03, 0.05, 0.1)

# Values of the recipe for two cores: sampled outputs make a step many times cheaper.
CPU_SEARCH: dict[str, dict[str, Any]] = {
    "lenet300": {},
    "lenet5": {"epochs": 5, "outputs": 2},
    "conv4": {"epochs": 1, "outputs": 1},
}
CONNECTED: dict[str, Any] = {"mask_rule": "connected"}
COVERING: dict[str, Any] = {"mask_rule": "covering"}
# What was tried to better the paper's method: each alone, and beside what helps most.
VARIANTS: list[dict[str, Any]] = [
    CONNECTED,
    COVERING,
    {"mask_rule": "flow"},
    {"mask_momentum": 0.5},
    {"output_loss": "reverse_kl"},
    {"normalize_kernels": True},
    {"active_from": 0.6},
    {"tangents": "active"},
    {"start_method": "synflow"},
]
# Beyond the paper: network, data, density, epochs of training.
BEYOND = (
    ("gru", "mnist", 0.01, 10),
    ("ds_cnn", "fashion_mnist", 0.1, 10),
    ("resnet20", "cifar10", 0.05, 10),
)
SMOKE_SEARCH = {"epochs": 1, "mask_every": 20}


def training(epochs: int, *, dropout: bool = True, **other: Any) -> TrainConfig:
    """The paper's training, for so many epochs; `other` values make it another one."""
    return TrainConfig(epochs=epochs, dropout=dropout, **other)


def cases(
    model: str,
    datasets: Iterable[str],
    densities: Iterable[float],
    schemes: Iterable[str],
    methods: Iterable[str],
    trainings: Iterable[TrainConfig],
    *,
    seeds: Iterable[int] = (0,),
    change: dict[str, Any] | None = None,
    controls: Iterable[str] = ("",),
) -> Iterator[Case]:
    """Every combination; what does not matter to a method is left out."""
    schemes = tuple(schemes)
    every = product(datasets, trainings, schemes, densities, seeds, methods, controls)
    for data, how, scheme, density, seed, method, control in every:
        if method != "dense" and scheme not in schemes_of(method, schemes):
            continue
        common: dict[str, Any] = {"model": model, "data": data, "method": method, "seed": seed, "training": how}
        searched = method in recipes.NAMES
        if method == "dense":
            yield Case(**common)
        else:
            changed = change if searched and change else {}
            yield Case(**common, density=density, scheme=scheme, control=control, change=changed)


def table1(budget: str) -> list[Case]:
    """Conv-4 on CIFAR-10 and SVHN, layerwise."""
    if budget == "smoke":
        return _smoke(FIVE, (0.05,))
    layerwise = ("layerwise",)
    if budget == "paper":
        both: dict[str, Any] = {"seeds": range(5)}
        return [
            *cases("conv4", ["cifar10"], (0.01, 0.03, 0.05), layerwise, FIVE, [training(600)], **both),
            *cases("conv4", ["svhn"], (0.01, 0.03, 0.05), layerwise, FIVE, [training(50)], **both),
        ]
    two = ("ntt", "scaled_random")
    conv4: dict[str, Any] = {"change": CPU_SEARCH["conv4"]}
    plain = [training(60, dropout=False)]
    return [
        *cases("conv4", ["cifar10"], [0.01], layerwise, FIVE, plain, **conv4),
        *cases("conv4", ["cifar10"], [0.01], layerwise, two, [training(600)], **conv4),
        *cases("conv4", ["cifar10"], [0.01], layerwise, ("random", "snip", "logit_snip"), [training(100)], **conv4),
        *cases("conv4", ["cifar10"], [0.01], layerwise, two, plain, seeds=(1, 2), **conv4),
        *cases("conv4", ["cifar10"], (0.03, 0.05), layerwise, FIVE, plain, **conv4),
        *cases("conv4", ["svhn"], [0.01], layerwise, FIVE, [training(30, dropout=False)], **conv4),
        *cases("conv4", ["svhn"], (0.03, 0.05), layerwise, (*two, "snip"), [training(30, dropout=False)], **conv4),
    ]


def table2(budget: str) -> list[Case]:
    """Conv-4 on CIFAR-10, global; at 1 % also on SVHN."""
    three = ("ntt", "snip", "logit_snip")
    if budget == "smoke":
        return _smoke(three, (0.05,), ("global",))
    if budget == "paper":
        return [*cases("conv4", ["cifar10"], (0.01, 0.03, 0.05), ["global"], three, [training(600)], seeds=range(5))]
    conv4: dict[str, Any] = {"change": CPU_SEARCH["conv4"]}
    plain = [training(20, dropout=False)]
    return [
        *cases("conv4", ["cifar10"], [0.01], ["global"], three, plain, **conv4),
        *cases("conv4", ["cifar10"], (0.03, 0.05), ["global"], ("ntt", "snip"), plain, **conv4),
        *cases("conv4", ["svhn"], [0.01], ["global"], ("ntt", "snip"), [training(30, dropout=False)], **conv4),
    ]


def curves(budget: str) -> list[Case]:
    """Learning curves: lenet300 on MNIST at 3 %, over seeds."""
    if budget == "smoke":
        return _smoke((*FIVE, "dense"), (0.03,), seeds=(0, 1), epochs=2)
    seeds = range(5 if budget == "paper" else 3)
    return [*cases("lenet300", ["mnist"], [0.03], ["layerwise"], (*FIVE, "dense"), [training(50)], seeds=seeds)]


def density(budget: str) -> list[Case]:
    """Accuracy over density: both LeNets on both MNISTs, both schemes (Conv-4's is in the tables)."""
    if budget == "smoke":
        return _smoke(("ntt", "random", "dense"), (0.02, 0.1), ("layerwise", "global"))
    schemes, both = ("layerwise", "global"), [training(50)]
    if budget == "paper":
        made: list[Case] = []
        for model in ("lenet300", "lenet5"):
            for seeds, methods in ((range(5), FIVE), (range(5), ("dense",))):
                made += cases(model, MNISTS, DENSITIES, schemes, methods, both, seeds=seeds)
        return made
    lenet5: dict[str, Any] = {"change": CPU_SEARCH["lenet5"]}
    return [
        *cases("lenet300", MNISTS, (0.01, 0.02, 0.03, 0.05, 0.1, 0.2), schemes, (*FIVE, "dense"), both),
        *cases("lenet300", MNISTS, (0.01, 0.02, 0.03), ["layerwise"], ["ntt+"], both, seeds=(0, 1, 2)),
        *cases("lenet300", MNISTS, (0.01, 0.03), schemes, FIVE, both, seeds=(1, 2)),
        *cases("lenet5", MNISTS, DENSITIES, schemes, (*FIVE, "dense"), both, **lenet5),
        *cases("lenet5", MNISTS, (0.01, 0.03), ["layerwise"], FIVE, [training(25)], seeds=(1, 2), **lenet5),
    ]


def tradeoff(budget: str) -> list[Case]:
    """Where the weights go: Conv-4 on CIFAR-10 under every scheme, for accuracy over multiply-adds."""
    schemes, two = ("budget", "erk", "layerwise", "global"), ("ntt", "scaled_random")
    if budget == "smoke":
        return _smoke(two, (0.05,), schemes)
    if budget == "paper":
        return [*cases("conv4", ["cifar10"], (0.01, 0.03, 0.05), schemes, two, [training(600)], seeds=range(5))]
    conv4: dict[str, Any] = {"change": CPU_SEARCH["conv4"]}
    plain = [training(60, dropout=False)]
    augmented = training(150, dropout=False, augmentation="crop_flip")
    return [
        *cases("conv4", ["cifar10"], [0.01], ("budget", "erk"), two, plain, **conv4),
        *cases("conv4", ["cifar10"], [0.01], ["budget"], ["ntt"], [training(300)], **conv4),
        *cases("conv4", ["cifar10"], [0.01], ["budget"], ["ntt", "ntt+"], [augmented], **conv4),
        *cases("conv4", ["cifar10"], [0.01], ["budget"], two, plain, seeds=(1, 2), **conv4),
    ]


def controls(budget: str) -> list[Case]:
    """NTT at 1 % with its mask or its weights replaced; each beside the network that it was made from."""
    every = ("", *CONTROLS)
    if budget == "smoke":
        return _smoke(("ntt",), (0.05,), controls=every)
    if budget == "paper":
        return [
            *cases("lenet300", MNISTS, [0.01], ["layerwise"], ["ntt"], [training(50)], controls=every, seeds=range(5)),
            *cases("conv4", ["cifar10"], [0.01], ["layerwise"], ["ntt"], [training(600)], controls=every),
        ]
    conv4: dict[str, Any] = {"change": CPU_SEARCH["conv4"], "controls": every}
    plain = [training(60, dropout=False)]
    return [
        *cases("lenet300", MNISTS, [0.01], ["layerwise"], ["ntt"], [training(50)], controls=every, seeds=(0, 1, 2)),
        *cases("conv4", ["cifar10"], [0.01], ["layerwise"], ["ntt"], plain, **conv4),
    ]


def field(budget: str) -> list[Case]:
    """Pruning before training, method by method: lenet300 on both MNISTs, Conv-4 on CIFAR-10; no dropout."""
    every, schemes = (*SEARCHES, *FIELD), ("layerwise", "global")
    if budget == "smoke":
        return _smoke(every, (0.05,), schemes)
    plain = [training(30, dropout=False)]
    seeds: dict[str, Any] = {"seeds": (0, 1, 2)}
    if budget == "paper":
        return [
            *cases("lenet300", MNISTS, (0.01, 0.02, 0.05), schemes, every, plain, **seeds),
            *cases("conv4", ["cifar10"], (0.01, 0.03), schemes, every, plain, **seeds),
        ]
    conv4: dict[str, Any] = {"change": CPU_SEARCH["conv4"]}
    short: dict[str, Any] = {"change": {"epochs": 5}}
    return [
        *cases("lenet300", MNISTS, (0.01, 0.02, 0.05), schemes, every, plain, **short),
        *cases("lenet300", MNISTS, [0.01], schemes, every, plain, **short, seeds=(1, 2)),
        *cases("conv4", ["cifar10"], [0.01], ["layerwise"], every, plain, **conv4),
        *cases("conv4", ["cifar10"], [0.03], ["layerwise"], every, plain, **conv4),
        *cases("conv4", ["cifar10"], (0.01, 0.03), ["global"], every, plain, **conv4),
    ]


def ablation(budget: str) -> list[Case]:
    """What betters NTT at 1 % layerwise: each variant of the search alone, and in place of a part of NTT+."""
    options: dict[str, Any] = {"seeds": (0, 1, 2)}
    if budget == "smoke":
        tasks: list[tuple[str, str, dict[str, Any]]] = [("lenet300", "mnist5k", SMOKE_SEARCH)]
        options, how, variants = {}, [training(1)], VARIANTS[:2]
    else:
        short = {"epochs": 5} if budget == "cpu" else {}
        tasks = [("lenet300", data, short) for data in MNISTS]
        how, variants = [training(30, dropout=False)], VARIANTS
    made: list[Case] = []
    tried = [*product(("ntt", "ntt+"), variants), ("gradual", CONNECTED)]
    for model, data, budgeted in tasks:
        made += cases(model, [data], [0.01], ["layerwise"], SEARCHES, how, change=budgeted, **options)
        for method, change in tried:
            if recipes.VARIANTS[method].items() >= change.items():
                continue
            made += cases(model, [data], [0.01], ["layerwise"], [method], how, change=budgeted | change, **options)
    if budget == "cpu":
        conv4 = CPU_SEARCH["conv4"]
        plain = [training(60, dropout=False)]
        made += cases("conv4", ["cifar10"], [0.01], ["layerwise"], SEARCHES, plain, change=conv4)
        for method, change in (("ntt", CONNECTED), ("ntt", COVERING), ("gradual", CONNECTED)):
            made += cases("conv4", ["cifar10"], [0.01], ["layerwise"], [method], plain, change=conv4 | change)
        made += cases("conv4", ["cifar10"], [0.01], ["layerwise"], ["ntt", "ntt+"], plain, change=conv4, seeds=(1, 2))
    return made


def networks(budget: str) -> list[Case]:
    """Networks that the paper does not have: NTT beside random masks, and beside its own with its weights moved."""
    if budget == "smoke":
        return [*_beyond("gru", "mnist5k", 0.05, 1, seeds=(0,), change=SMOKE_SEARCH)]
    made: list[Case] = []
    for seed in range(5 if budget == "paper" else 3):
        for model, data, density, epochs in BEYOND:
            made += _beyond(model, data, density, 50 if budget == "paper" else epochs, seeds=(seed,))
    return made


def _beyond(
    model: str, data: str, density: float, epochs: int, *, seeds: Sequence[int], change: dict[str, Any] | None = None
) -> Iterator[Case]:
    """Small layers need more of their weights than large ones: the search uses erk."""
    how: dict[str, Any] = {"trainings": [training(epochs)], "seeds": seeds, "change": change}
    yield from cases(model, [data], [density], ["erk"], ["ntt"], controls=("", "shuffled"), **how)
    yield from cases(model, [data], [density], ["erk", "layerwise"], ["random"], **how)


def _smoke(
    methods: Sequence[str],
    densities: Sequence[float],
    schemes: Sequence[str] = ("layerwise",),
    *,
    seeds: Sequence[int] = (0,),
    epochs: int = 1,
    controls: Sequence[str] = ("",),
) -> list[Case]:
    options: dict[str, Any] = {"seeds": seeds, "change": SMOKE_SEARCH, "controls": controls}
    return [*cases("lenet300", ["mnist5k"], densities, schemes, methods, [training(epochs)], **options)]


# In the order in which `all` runs them: each stands for itself.
EXPERIMENTS: dict[str, Callable[[str], list[Case]]] = {
    "table1": table1,
    "tradeoff": tradeoff,
    "curves": curves,
    "controls": controls,
    "density": density,
    "table2": table2,
    "ablation": ablation,
    "field": field,
    "networks": networks,
}


def plan(experiment: str, budget: str) -> list[Case]:
    """The cases of an experiment, or of "all", each once."""
    if budget not in BUDGETS:
        raise UnknownName("budget", budget, BUDGETS)
    if experiment == "dynamics":
        return []
    if experiment not in (*EXPERIMENTS, "all"):
        raise UnknownName("experiment", experiment, (*EXPERIMENTS, "dynamics", "all"))
    chosen = EXPERIMENTS if experiment == "all" else [experiment]
    return list({case.name: case for name in chosen for case in EXPERIMENTS[name](budget)}.values())
