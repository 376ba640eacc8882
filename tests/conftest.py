import hypothesis
import jax
import pytest

from nttzoo import architectures, cost, pruning

jax.config.update("jax_numpy_rank_promotion", "raise")
# The suite spends its time compiling small programs, most of them run once.
jax.config.update("jax_disable_most_optimizations", True)

# Each new shape is compiled, which takes longer than hypothesis allows. The same code gets the same verdict.
hypothesis.settings.register_profile("nttzoo", deadline=None, derandomize=True, database=None, max_examples=20)
hypothesis.settings.load_profile("nttzoo")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Compiled networks of the tests do not end up among the user's."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture
def x64():
    """Double precision for the length of one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def thin_conv4():
    """Conv-4 at 1 %, layerwise, and what it costs: made once, because it takes seconds. Not to be changed."""
    model = pruning.prune(architectures.create("conv4", rngs=0), "random", density=0.01, key=0)
    return model, cost.speedup(model)
