import json

import pytest

import nttzoo
from nttzoo.search import recipes
from nttzoo.zoo import card, methods

NAMED = "conv4-cifar10-1pct-layerwise"


@pytest.mark.parametrize(
    ("recipe", "name"),
    [
        ({"name": "ntt"}, "ntt"),  # older than most fields
        ({"name": "ntt+", "start_density": 0.05, "mask_rule": "covering"}, "ntt+"),
        ({"name": "ntt+", "start_density": 0.05, "mask_rule": "connected"}, "gradual, mask_rule=connected"),
        ({"name": "gradual", "start_density": 0.2}, "ntt, start_density=0.2"),
        ({"name": "mine", "tangents": "active"}, "ntt, tangents=active"),
        ({"name": "gradual", "start_density": 0.05, "epochs": 3, "outputs": 2}, "gradual"),
    ],
)
def test_a_method_is_named_after_the_values_of_its_recipe(recipe, name):
    assert methods.method(recipe) == name


@pytest.mark.parametrize("name", recipes.NAMES)
def test_named_recipes_keep_their_names(name):
    assert methods.method(vars(recipes.find(name, "lenet300", "mnist"))) == name


def test_a_card_tells_what_found_the_network_not_what_it_was_called():
    metrics = json.loads(json.dumps(nttzoo.info(NAMED).metrics))
    assert "now stands for another recipe" not in card.card(metrics)
    assert metrics["recipe"]["name"] == "ntt+"
    metrics["recipe"]["mask_rule"] = "connected"  # as the recipe of this name was once
    text = " ".join(card.card(metrics).split())
    assert "Recipe `gradual, mask_rule=connected` (density falling from 5 %)" in text
    assert "| **gradual, mask_rule=connected** | layerwise | 1 | **61.03** |" in text
    assert "call the recipe `ntt+`, a name that now stands for another recipe" in text


def test_a_card_admits_that_a_simpler_method_was_better():
    metrics = json.loads(json.dumps(nttzoo.info("lenet300-mnist-1pct-global").metrics))
    assert "More accurate at this density" not in card.card(metrics)
    (random,) = [row for row in metrics["compared"] if row["method"] == "random"]
    random["test_accuracy"] = [0.97]
    assert "- More accurate at this density: `random` (see the table)." in card.card(metrics)
