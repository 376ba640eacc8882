"""Every name in docs/api.md is documented: all arguments, what is returned, and an example."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import nttzoo

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
NAMES = [name for name in re.findall(r"^::: (\S+)$", PAGE, re.MULTILINE) if name != "nttzoo.errors"]


def found(name):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def test_all_that_nttzoo_exports_is_on_the_page():
    documented = [found(name) for name in NAMES]
    assert [name for name in nttzoo._NAMES if getattr(nttzoo, name) not in documented] == []


@pytest.mark.parametrize("name", [name for name in NAMES if inspect.isfunction(found(name))])
def test_functions_are_documented(name):
    text, signature = inspect.getdoc(found(name)), inspect.signature(found(name))
    for argument in signature.parameters:
        assert re.search(rf"^  \**{argument}: ", text, re.MULTILINE), f"{argument} is not among the Args of {name}"
    assert "\nReturns:\n" in text or signature.return_annotation in (None, "None")
    assert re.search(r"^Example:\n  >>> ", text, re.MULTILINE)


@pytest.mark.parametrize("name", ["nttzoo.TrainConfig", "nttzoo.search.SearchConfig", "nttzoo.recipes.Recipe"])
def test_configs_are_documented(name):
    module, _, attribute = name.rpartition(".")
    config = getattr(nttzoo if module == "nttzoo" else getattr(nttzoo, module.rpartition(".")[2]), attribute)
    for field in inspect.signature(config).parameters:
        assert re.search(rf"^  {field}: ", inspect.getdoc(config), re.MULTILINE), f"{field} is not documented"
    assert re.search(r"^Example:\n  >>> ", inspect.getdoc(config), re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_examples_parse(name):
    lines = re.findall(r"^\s*(?:>>>|\.\.\.) (.*)$", inspect.getdoc(found(name)) or "", re.MULTILINE)
    compile("\n".join(lines), name, "exec")
