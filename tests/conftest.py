import collections
import ctypes
import gc
import os
import shutil
import tempfile

import hypothesis
import jax
import psutil
import pytest
import runtime_types

FEW = 2  # parameter sets of a test among the fast tests
MEMORY = 3 * 2**29  # above this a worker throws compiled programs away ...
GROWTH = 2**29  # ... and again after growing by this much, but never later ...
MOST = 9 * 2**28  # ... than here: a worker must stay under 2.5 GB

jax.config.update("jax_numpy_rank_promotion", "raise")

# Each new shape is compiled, which takes longer than hypothesis allows. The same code gets the same verdict.
hypothesis.settings.register_profile("nttzoo", deadline=None, derandomize=True, database=None, max_examples=20)
hypothesis.settings.load_profile("nttzoo")


def pytest_addoption(parser):
    parser.addoption("--optimized", action="store_true", help="compile with all optimizations, as users do (slower)")
    parser.addoption("--types", action="store_true", help="check arrays in calls against their jaxtyping annotations")


def pytest_configure(config):
    """Programs are compiled once for all workers and for the processes that tests start.

    None is kept, unless JAX_COMPILATION_CACHE_DIR names a folder: then the next run of the tests starts faster.
    """
    if config.getoption("--types"):
        runtime_types.install("nttzoo")  # before anything of it is imported
    if not config.getoption("--optimized"):
        # The suite spends its time compiling small programs, most of them run once.
        jax.config.update("jax_disable_most_optimizations", True)
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # for processes that tests start
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # the workers get the environment of the first process
        folder = tempfile.mkdtemp(prefix="nttzoo-compiled-")
        os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


@pytest.fixture(autouse=True)
def bounded_memory():
    """Hundreds of tests leave thousands of compiled programs.

    Much of a worker's memory is not theirs: with a fixed limit, it might compile every test from scratch.
    """
    yield
    if _memory() > _limit[0]:
        jax.clear_caches()
        gc.collect()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)
        _limit[0] = min(max(MEMORY, _memory() + GROWTH), MOST)


_limit = [MEMORY]


def _memory() -> int:
    return psutil.Process().memory_info().rss


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config, items):
    """A test with many parameters runs a few of them among the fast tests, and the others among the slow ones.

    One that is named, as in `pytest tests/test_x.py::test_y`, runs with all.
    """
    if any("::" in argument for argument in config.args):
        return
    seen = collections.Counter()
    for item in items:
        if hasattr(item, "callspec"):
            test = item.path, item.originalname
            seen[test] += 1
            if seen[test] > FEW:
                item.add_marker(pytest.mark.slow)


def pytest_collection_finish():
    gc.freeze()  # modules and collected tests: nothing to look through in every collection


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """Compiled networks of the tests do not end up among the user's."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture
def trusted_rules(monkeypatch):
    """No self-check of the kernel's rules: it compiles two more programs for every new model, half of a test's time."""
    from nttzoo.ntk import selfcheck

    monkeypatch.setattr(selfcheck, "_trusted", {})  # what is trusted here is not trusted by the tests that follow
    monkeypatch.setattr(selfcheck, "_agrees", lambda *_: True)


@pytest.fixture(autouse=True)
def self_check_where_it_matters(request):
    """Outside of the kernels' own tests nothing depends on the self-check."""
    if "ntk" not in request.path.parts:
        request.getfixturevalue("trusted_rules")


@pytest.fixture
def x64():
    """Double precision for the length of one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def thin_conv4():
    """Conv-4 at 1 %, layerwise, and what it costs: made once, because it takes seconds. Not to be changed."""
    from nttzoo import architectures  # not above: the types of what is imported before --types are not checked
    from nttzoo.sparsity import cost, pruning

    model = pruning.prune(architectures.create("conv4", rngs=0), "random", density=0.01, rngs=0)
    return model, cost.speedup(model)
