"""Every public function names a wrong argument at once, with an error of nttzoo and before any work."""

import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import nttzoo
from nttzoo import data, dynamics, export, masks, ntk, recipes, search
from nttzoo.codegen.training import UpdateRule
from nttzoo.errors import NttzooError
from nttzoo.search.recipes import Recipe

WRONG = [None, "", "no such thing", b"x", -1, 1.5, math.nan, math.inf, -math.inf, 1e300, 10**30, 2 + 1j, True, [], {}]
WRONG += [(None,), [math.nan], np.ones((2, 0)), np.full(3, math.nan), np.array(["x"]), "\0", object()]
NAME = "lenet300-mnist-1pct-global"
IMAGES, LABELS = np.ones((4, 4, 4, 1), np.float32), np.zeros(4, int)
RECIPE = {"name": "own", "epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "kernel_weight": 1.0, "weight_decay": 0.0}


def without(*values):
    """Those of the wrong values that are not equal to some that are right after all."""
    return [v for v in WRONG if isinstance(v, np.ndarray) or not any(type(v) is type(x) and v == x for x in values)]


WHOLE = without("no such thing")
ONLY_NUMBERS = without(1.5, 10**30)
OPTIONAL = without(None)
FLAG = without(True)
GLOBS = [v for v in without([], {}) if not isinstance(v, np.ndarray)]
NAMES = [v for v in OPTIONAL if not (isinstance(v, np.ndarray) and v.dtype.kind == "U")]
TEXT = without("no such thing", "\0")
PATH = without("no such thing")
SYMBOLS = without("no such thing", "\0", "", None, [], {})
OPTIONAL_PATH = without("no such thing", None)


# Other words by which messages call an argument.
CALLED = {
    "model": ["architecture", "recipe for", "published network"],
    "name": ["architecture", "published network", "data set", "recipe"],
    "data": ["data set", "recipe for"],
    "dataset": ["data set"],
    "densities": ["density"],
    "schemes": ["scheme"],
    "method": ["pruning method"],
    "start_method": ["pruning method"],
    "mask_rule": ["mask rule"],
    "exclude": ["no layer's path matches"],
    "size": ["batch size"],
}


def network():
    return nttzoo.create("lenet300", input_shape=(4, 4, 1), num_classes=3, rngs=0)


KERNEL, OUTPUTS = jnp.ones((2, 2, 3, 3)), jnp.ones((2, 3))
DATA = data.from_arrays(IMAGES, LABELS, IMAGES, LABELS, classes=("a", "b", "c"))


def first(batches):
    return lambda **arguments: next(batches(**arguments))


# Results, not made by users; and functions that compile WebAssembly with the checks of `export_c`.
EXEMPT = {nttzoo.Speedup, nttzoo.export_wasm, nttzoo.export_training_wasm}
# function -> (arguments that work, {argument: values that do not}; by default everything in WRONG)
CASES = {
    "Recipe": (
        Recipe,
        {**RECIPE, "mask_every": 9, "tangents": "all", "outputs": 1, "start_density": 0.5, "fall": 0.5}
        | {"fall_shape": "linear", "held_out": 0.1, "start_method": "synflow", "mask_rule": "flow", "active_from": 0.5}
        | {"mask_momentum": 0.5, "output_loss": "squared", "normalize_kernels": True},
        {"name": TEXT, "learning_rate": ONLY_NUMBERS, "kernel_weight": ONLY_NUMBERS, "weight_decay": ONLY_NUMBERS}
        | {"outputs": OPTIONAL, "start_density": OPTIONAL, "start_method": OPTIONAL, "active_from": OPTIONAL}
        | {"normalize_kernels": FLAG},
    ),
    "SearchConfig": (
        search.SearchConfig,
        {"model": "lenet300", "data": "mnist5k", "densities": (0.1,), "schemes": ("global",), "exclude": ()}
        | {"seed": 0, "recipe": "ntt"},
        {"exclude": GLOBS},
    ),
    "create": (
        nttzoo.create,
        {"name": "lenet300", "num_classes": 3, "input_shape": (4, 4, 1), "rngs": 0},
        {"input_shape": OPTIONAL},
    ),
    "sparsify": (nttzoo.sparsify, {"model": network(), "exclude": (), "copy": True}, {"copy": FLAG, "exclude": GLOBS}),
    "densify": (nttzoo.densify, {"model": network()}, {}),
    "prune": (
        nttzoo.prune,
        {"model": network(), "method": "magnitude", "density": 0.5, "scheme": "global", "exclude": (), "rngs": 0}
        | {"input_shape": (4, 4, 1)},
        {"exclude": GLOBS, "rngs": OPTIONAL, "input_shape": OPTIONAL},
    ),
    "snip": (nttzoo.prune, {"model": network(), "method": "snip", "density": 0.5, "batch": (IMAGES, LABELS)}, {}),
    "speedup": (nttzoo.speedup, {"model": network(), "input_shape": (4, 4, 1)}, {"input_shape": OPTIONAL}),
    "load": (nttzoo.load, {"name": NAME, "weights": "init", "factory": None}, {"factory": OPTIONAL}),
    "info": (nttzoo.info, {"name": NAME, "home": None}, {"home": OPTIONAL_PATH}),
    "list_models": (
        nttzoo.list_models,
        {"dataset": "mnist", "density": 0.01, "scheme": "global"},
        {"dataset": OPTIONAL, "density": OPTIONAL, "scheme": OPTIONAL},
    ),
    "save": (
        nttzoo.save,
        {"model": network(), "folder": "model", "input_spec": None},
        {"folder": PATH, "input_spec": OPTIONAL},
    ),
    "data.load": (
        data.load,
        {"name": "mnist5k", "data_dir": None, "download": False},
        {"data_dir": OPTIONAL_PATH, "download": FLAG},
    ),
    "from_arrays": (
        data.from_arrays,
        {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES, "y_test": LABELS, "name": "a", "classes": None},
        {"name": TEXT, "classes": NAMES},
    ),
    "batches": (first(data.Labeled(IMAGES, LABELS).batches), {"size": 2, "rngs": 0}, {}),
    "split": (data.Labeled(IMAGES, LABELS).split, {"fraction": 0.5, "rngs": 0}, {}),
    "export_onnx": (
        nttzoo.export_onnx,
        {"model": network(), "path": "a.onnx", "weights": "init", "sparse": True, "opset": 17, "batch": "B"}
        | {"layout": "NHWC", "input_shape": None, "images": None, "name": None},
        {"sparse": FLAG, "path": PATH, "input_shape": OPTIONAL, "images": OPTIONAL, "name": SYMBOLS},
    ),
    "export_c": (
        nttzoo.export_c,
        {"model": network(), "path": "a.c", "weights": "init", "input_shape": None, "name": None},
        {"input_shape": OPTIONAL, "name": SYMBOLS},
    ),
    "compile": (
        nttzoo.compile,
        {"model": network(), "threads": 1, "weights": "init", "input_shape": None},
        {"threads": OPTIONAL, "input_shape": OPTIONAL},
    ),
    "transfer": (
        search.transfer,
        {"teacher": network(), "images": IMAGES, "config": search.SearchConfig(recipe=Recipe(**RECIPE))}
        | {"journal": None, "preprocess": None, "devices": None, "save_every": 1.0, "progress": False},
        {
            "journal": OPTIONAL,
            "preprocess": OPTIONAL,
            "devices": OPTIONAL,
            "save_every": ONLY_NUMBERS,
            "progress": FLAG,
        },
    ),
    "search.run": (
        search.run,
        {"config": search.SearchConfig(), "out": None, "fresh": False, "devices": 1, "data_dir": None}
        | {"download": False, "save_every": 1.0, "progress": False},
        {"out": OPTIONAL_PATH, "fresh": FLAG, "devices": OPTIONAL}
        | {"data_dir": OPTIONAL_PATH, "download": FLAG}
        | {"save_every": ONLY_NUMBERS, "progress": FLAG},
    ),
    "dry_run": (
        search.dry_run,
        {"config": search.SearchConfig(), "devices": 1, "data_dir": None, "download": False},
        {"devices": OPTIONAL, "data_dir": OPTIONAL_PATH, "download": FLAG},
    ),
    "find": (recipes.find, {"name": "ntt", "model": "lenet300", "data": "mnist"}, {}),
    "TrainConfig": (
        nttzoo.TrainConfig,
        {"epochs": 1, "batch_size": 2, "learning_rate": 0.1, "optimizer": "sgd", "momentum": 0.5}
        | {"weight_decay": 0.0, "loss": "squared", "validation": 0.5, "augmentation": "none", "dropout": True}
        | {"seed": 0, "progress": False, "engine": "jax"},
        {"learning_rate": ONLY_NUMBERS, "weight_decay": ONLY_NUMBERS, "dropout": FLAG, "progress": FLAG},
    ),
    "fit": (
        nttzoo.fit,
        {"model": network(), "data": DATA, "config": nttzoo.TrainConfig(epochs=0), "checkpoint": None},
        {"config": OPTIONAL, "checkpoint": OPTIONAL_PATH},
    ),
    "empirical_ntk": (
        nttzoo.empirical_ntk,
        {"model": network(), "x1": IMAGES, "x2": IMAGES, "tangents": "all", "outputs": "full", "memory": None},
        {"x2": OPTIONAL, "memory": OPTIONAL},
    ),
    "kernel_distance": (
        nttzoo.kernel_distance,
        {"student": network(), "teacher": network(), "x1": IMAGES, "x2": IMAGES, "tangents": "all", "outputs": None}
        | {"memory": None},
        {"x2": OPTIONAL, "outputs": OPTIONAL, "memory": OPTIONAL},
    ),
    "spread_outputs": (
        ntk.spread_outputs,
        {"key": jax.random.key(0), "examples": 4, "total": 3, "sampled": 1},
        {},
    ),
    "gradient_flow": (
        dynamics.gradient_flow,
        {"kernel": KERNEL, "start": OUTPUTS, "targets": OUTPUTS, "times": jnp.ones(2)}
        | {"test_kernel": KERNEL, "test_start": OUTPUTS},
        {"times": without([])},
    ),
    "gradient_descent": (
        dynamics.gradient_descent,
        {"kernel": KERNEL, "start": OUTPUTS, "targets": OUTPUTS, "steps": jnp.ones(2), "learning_rate": 0.1}
        | {"test_kernel": KERNEL, "test_start": OUTPUTS},
        {"learning_rate": ONLY_NUMBERS, "steps": without([])},
    ),
    "density_report": (masks.density_report, {"model": network()}, {}),
    "standardize": (data.standardize, {"images": IMAGES, "mean": np.ones(1), "std": np.ones(1)}, {}),
    "export_hub": (export.export_hub, {"name": NAME, "folder": "hub"}, {"folder": PATH}),
    "UpdateRule": (
        UpdateRule,
        {"kind": "adam", "momentum": 0.5, "nesterov": False, "beta1": 0.9, "beta2": 0.9, "epsilon": 1e-8}
        | {"weight_decay": 0.0},
        {"nesterov": FLAG, "weight_decay": ONLY_NUMBERS, "epsilon": ONLY_NUMBERS},
    ),
    "compile_training": (
        nttzoo.compile_training,
        {"model": network(), "optimizer": "adam", "learning_rate": 0.1, "loss": "squared", "dropout": False}
        | {"seed": 0, "threads": 1, "input_shape": None},
        {"learning_rate": ONLY_NUMBERS, "dropout": FLAG, "threads": OPTIONAL, "input_shape": OPTIONAL},
    ),
    "export_training_c": (
        nttzoo.export_training_c,
        {"model": network(), "path": "a.c", "name": None, "optimizer": "adam", "loss": "squared", "dropout": False}
        | {"seed": 0, "input_shape": None},
        {"name": SYMBOLS, "dropout": FLAG, "input_shape": OPTIONAL},
    ),
}


@pytest.mark.parametrize(
    ("function", "argument"), [(name, argument) for name, (_, good, _) in CASES.items() for argument in good]
)
def test_a_wrong_argument_raises_an_error_of_nttzoo(function, argument, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call, good, wrong = CASES[function]
    for value in wrong.get(argument, WRONG):
        with pytest.raises(NttzooError) as error:
            call(**good | {argument: value})
        assert any(word in str(error.value) for word in [argument, *CALLED.get(argument, [])]), error.value
    assert not list(tmp_path.iterdir())  # refused before any work


def test_every_argument_of_every_public_function_is_tried():
    functions = {call for call, _, _ in CASES.values()}
    exported = {getattr(nttzoo, name) for name in nttzoo._NAMES} - EXEMPT
    assert exported - functions == set()
    for function in functions:
        known = inspect.signature(function).parameters.keys() - {"arguments", "words"}
        tried = [argument for call, good, _ in CASES.values() if call is function for argument in good]
        assert known - {*tried} == set(), function


@pytest.mark.parametrize("function", ["Recipe", "SearchConfig", "create", "sparsify", "prune", "speedup", "snip"])
def test_the_arguments_that_the_others_are_changed_from_do_work(function):
    call, good, _ = CASES[function]
    assert call(**good) is not None
