import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def x64():
    """Double precision for the length of one test."""
    with jax.enable_x64(True):
        yield
