"""Plans, batches, and what cannot be searched for."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_search import RECIPE, SHAPE, config, images, teacher, transfer

from nttzoo import search
from nttzoo.errors import (
    DataError,
    NttzooError,
    OptionError,
    ShapeError,
)
from nttzoo.search.batches import draw_batch
from nttzoo.search.config import Plan

# The plan.


def test_the_papers_search_has_18720_steps():
    plan = Plan.of(search.SearchConfig(data="mnist").recipe, 60_000)
    assert (plan.images, plan.held_out, plan.steps) == (59_880, 120, 18_720)
    assert plan.last_refresh == 18_600
    assert [s for s in (0, 50, 100, 18_500, 18_600, 18_620, 18_700) if plan.refreshes_at(s)] == [100, 18_500, 18_600]


def test_in_the_last_steps_the_mask_stays():
    plan = Plan(RECIPE.change(mask_every=4), 100, 0, 12)
    assert [step for step in range(13) if plan.refreshes_at(step)] == [4, 8]


def test_the_density_falls_geometrically_and_then_stays():
    plan = Plan(RECIPE.change(start_density=0.04, fall=0.5), 100, 0, 40)
    assert plan.density(0.01, 0) == pytest.approx(0.04)
    assert plan.density(0.01, 10) == pytest.approx(0.02)
    assert [plan.density(0.01, step) for step in (20, 30, 40)] == [0.01] * 3
    assert plan.density(0.2, 0) == 0.2, "a target above the start is not approached from below"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch_size": 98}, r"batch_size 98 does not fit 60 images \(60 of 120 are held out\): choose at most 60"),
        ({"start_density": 0.5, "mask_every": 10}, r"refreshed for the last time at step 0 of 16"),
        ({"densities": ()}, "at least one density"),
        ({"densities": (0.1, 0.1)}, "each student once"),
        ({"densities": (1.5,)}, r"not in \(0, 1\]"),
        ({"schemes": ("layer",)}, "Did you mean 'layerwise'"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "from 0 to 4294967295"),
        ({"outputs": 4}, "cannot sample 4 of 3 outputs"),
        ({"densities": (1e-4,)}, "would leave layer 'linear3'"),
        ({"recipe": "nt"}, "no recipe 'nt'. Did you mean 'ntt'"),
    ],
)
def test_what_cannot_be_searched_for_is_refused(change, says):
    with pytest.raises(NttzooError, match=says):
        transfer(**change)


@pytest.mark.parametrize(
    ("bad", "error", "says"),
    [
        (np.zeros((0, *SHAPE), np.float32), ShapeError, "n > 0"),
        (np.full((120, *SHAPE), np.nan, np.float32), DataError, "NaN"),
        (np.zeros((120, 5, 5, 1), np.float32), ShapeError, r"takes images of shape \[n, 4, 4, 1\]"),
        (np.zeros((120, *SHAPE), np.uint8), ShapeError, "floating-point"),
    ],
)
def test_images_that_do_not_fit_are_refused(bad, error, says):
    with pytest.raises(error, match=says):
        search.transfer(teacher(), bad, config(), progress=False)


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_times_between_saved_states_that_make_no_sense_are_refused(seconds):
    with pytest.raises(OptionError, match="save_every is"):
        search.transfer(teacher(), images(), config(), save_every=seconds, progress=False)


# Batches.


@given(st.integers(2, 40), st.data())
def test_a_batch_holds_different_images(count, draw):
    size = draw.draw(st.integers(1, count))
    chosen = np.asarray(draw_batch(jax.random.key(draw.draw(st.integers(0, 99))), count, size))
    assert len(set(chosen.tolist())) == size
    assert chosen.min() >= 0
    assert chosen.max() < count


def test_every_ordered_choice_is_equally_likely():
    draws = jax.vmap(lambda key: draw_batch(key, 5, 2))(jax.random.split(jax.random.key(0), 20_000))
    _, counts = np.unique(np.asarray(draws), axis=0, return_counts=True)
    assert len(counts) == 20
    assert np.abs(counts - 1000).max() < 5 * np.sqrt(1000)
