"""The paper's own numbers: test accuracies in %, as printed there, by density. Reference: https://arxiv.org/abs/2006.08228."""

from __future__ import annotations

# Table 1: Conv-4, layerwise, 600 epochs on CIFAR-10, five repetitions: (mean, as it says after +-).
LAYERWISE: dict[str, dict[str, dict[float, tuple[float, float]]]] = {
    "cifar10": {
        "random": {0.05: (67.94, 0.92), 0.03: (58.09, 1.02), 0.01: (22.17, 6.98)},
        "scaled_random": {0.05: (66.86, 1.05), 0.03: (57.17, 0.84), 0.01: (37.24, 1.22)},
        "logit_snip": {0.05: (62.93, 5.45), 0.03: (50.77, 3.59), 0.01: (33.30, 3.92)},
        "snip": {0.05: (68.90, 0.87), 0.03: (55.64, 3.47), 0.01: (27.84, 5.25)},
        "ntt": {0.05: (71.84, 0.72), 0.03: (65.58, 0.76), 0.01: (52.14, 1.39)},
    },
    "svhn": {
        "random": {0.05: (77.87, 0.28), 0.03: (72.09, 0.66), 0.01: (18.70, 1.47)},
        "scaled_random": {0.05: (79.55, 0.26), 0.03: (75.22, 0.27), 0.01: (48.47, 3.10)},
        "logit_snip": {0.05: (74.89, 4.40), 0.03: (66.21, 4.68), 0.01: (41.92, 5.90)},
        "snip": {0.05: (75.62, 3.28), 0.03: (64.08, 4.77), 0.01: (43.58, 3.30)},
        "ntt": {0.05: (81.49, 0.45), 0.03: (79.04, 0.32), 0.01: (71.63, 0.80)},
    },
}
# Table 2: Conv-4, global, CIFAR-10.
GLOBAL: dict[str, dict[str, dict[float, tuple[float, float]]]] = {
    "cifar10": {
        "logit_snip": {0.05: (77.27, 0), 0.03: (75.13, 0), 0.01: (65.90, 0)},
        "snip": {0.05: (78.28, 0), 0.03: (76.00, 0), 0.01: (67.12, 0)},
        "ntt": {0.05: (78.85, 0), 0.03: (76.28, 0), 0.01: (68.81, 0)},
    }
}
METHODS = {
    "ntt": "NTT",
    "gradual": "gradual NTT",
    "ntt+": "NTT+",
    "random": "random",
    "scaled_random": "scaled random",
    "magnitude": "magnitude",
    "snip": "SNIP",
    "logit_snip": "Logit-SNIP",
    "erk": "ERK, random",
    "synflow": "SynFlow",
    "px": "PX",
    "ntk_sap": "NTK-SAP",
    "iterative_snip": "iterative SNIP",
    "force": "FORCE",
    "grasp": "GraSP",
    "dense": "dense",
}


def title(method: str) -> str:
    """A method as tables and figures call it."""
    return METHODS.get(method, method)
