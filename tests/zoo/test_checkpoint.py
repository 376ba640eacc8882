import json
import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest
import zstandard
from flax import nnx

from nttzoo import architectures, checkpoint, nn
from nttzoo.errors import FileError, RunError
from nttzoo.sparsity import pruning


def test_pack_and_unpack_give_the_same_function_from_few_bytes():
    model = pruning.prune(architectures.create("lenet5", rngs=0), "magnitude", density=0.013)
    packed = checkpoint.pack(model)
    kept, bits = round(0.013 * 400_000), 400_000 // 8
    assert packed["linear1.kernel"].shape == (kept,)
    assert packed["linear1.mask"].nbytes == bits
    other = architectures.create("lenet5", rngs=1)
    checkpoint.unpack(other, packed)
    model.eval(), other.eval()
    x = jnp.ones((2, 28, 28, 1))
    np.testing.assert_array_equal(model(x), other(x))
    for mine, theirs in zip(nn.masked_layers(model).values(), nn.masked_layers(other).values(), strict=True):
        np.testing.assert_array_equal(mine.mask[...], theirs.mask[...])
        assert (theirs.kernel[...] == 0).sum() >= (~theirs.mask[...]).sum(), "pruned weights come back as zeros"


def test_an_emptied_layer_can_be_stored(tmp_path):
    model = architectures.create("lenet300", rngs=0)
    model.linear3.mask[...] = jnp.zeros_like(model.linear3.mask[...])
    checkpoint.save_arrays(tmp_path / "arrays", checkpoint.pack(model))
    other = architectures.create("lenet300", rngs=1)
    checkpoint.unpack(other, checkpoint.load_arrays(tmp_path / "arrays"))
    assert not other.linear3.mask[...].any()
    x = jnp.ones((1, 28, 28, 1))
    np.testing.assert_array_equal(model(x), other(x))


def test_a_norms_statistics_are_stored_too():
    def normed(seed):
        rngs = nnx.Rngs(seed)
        return nn.sparsify(nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), nnx.BatchNorm(4, rngs=rngs), nnx.Dropout(0.5)))

    model, other = normed(0), normed(1)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)), jnp.float32)
    model(x, rngs=nnx.Rngs(0))  # in training mode: moves mean and variance
    checkpoint.unpack(other, checkpoint.pack(model))
    model.eval(), other.eval()
    np.testing.assert_array_equal(model(x), other(x))


def test_arrays_come_back_as_they_were_and_a_new_save_replaces_the_old(tmp_path):
    first = {"a.mask": np.arange(5, dtype=np.uint8), "b": np.array([[1.5, np.pi]], np.float32)}
    checkpoint.save_arrays(tmp_path / "arrays", first)
    found = checkpoint.load_arrays(tmp_path / "arrays")
    assert found.keys() == first.keys()
    for name, array in first.items():
        assert isinstance(found[name], np.ndarray)
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    checkpoint.save_arrays(tmp_path / "arrays", {"c": np.ones(2)})
    assert checkpoint.load_arrays(tmp_path / "arrays").keys() == {"c"}


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(RunError, match=r"no checkpoint at .*nowhere"):
        checkpoint.load_arrays(tmp_path / "nowhere")
    checkpoint.save_arrays(tmp_path / "arrays", {"c": np.ones(2)})
    (tmp_path / "arrays" / "manifest.ocdbt").unlink()
    with pytest.raises(RunError, match=r"arrays is damaged or not whole"):
        checkpoint.load_arrays(tmp_path / "arrays")


def test_the_arrays_of_another_network_are_refused():
    packed = checkpoint.pack(architectures.create("lenet300", rngs=0))
    with pytest.raises(RunError, match="another network: it has no conv1"):
        checkpoint.unpack(architectures.create("lenet5", rngs=0), packed)
    with pytest.raises(RunError, match="its mask of linear1 has another size"):
        checkpoint.unpack(architectures.create("lenet300", input_shape=(32, 32, 3), rngs=0), packed)


def test_the_latest_states_are_kept_and_restored_into_their_structure(tmp_path):
    state = {"layers": (nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0))), [jnp.array(3), jnp.array([True, False])])}
    kept = checkpoint.Checkpoints(tmp_path, keep=2)
    assert kept.latest() is None
    for step in (1, 5, 9, 9):
        kept.save(step, {**state, "step": jnp.array(step)})
    assert kept.latest() == 9
    assert sorted(int(p.name) for p in tmp_path.iterdir() if p.name.isdigit()) == [5, 9]
    blank = {"layers": (nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(1))), [jnp.array(0), jnp.array([False, False])])}
    found = kept.restore(9, {**blank, "step": jnp.array(0)})
    kept.close()
    assert found["step"] == 9
    assert found["layers"][1][0] == 3
    assert found["layers"][1][1].tolist() == [True, False]
    np.testing.assert_array_equal(found["layers"][0]["kernel"][...], state["layers"][0]["kernel"][...])


def test_a_state_that_cannot_be_written_says_where_the_last_whole_one_is(tmp_path, monkeypatch):
    kept = checkpoint.Checkpoints(tmp_path)
    kept.save(1, {"a": jnp.ones(2)})

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nttzoo.checkpoint.states._write", full)
    with pytest.raises(RunError, match=r"step 2 could not be saved.*No space left.*that of step 1"):
        kept.save(2, {"a": jnp.ones(2)})
    kept.close()


def test_a_damaged_state_gives_way_to_the_one_before(tmp_path):
    kept = checkpoint.Checkpoints(tmp_path)
    for step in (1, 2):
        kept.save(step, {"a": jnp.full(100, step)}, {"notes": f"after {step}"})
    path = tmp_path / "2" / "default" / "manifest.ocdbt"
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    with pytest.warns(UserWarning, match=r"was changed or cut short.*continues from an earlier state"):
        assert kept.latest_whole() == 1
    assert kept.restore(1, {"a": jnp.zeros(100, int)})["a"][0] == 1
    assert kept.text(1, "notes") == "after 1"
    kept.save(2, {"a": jnp.full(100, 7)})
    assert kept.latest_whole() == 2
    assert kept.restore(2, {"a": jnp.zeros(100, int)})["a"][0] == 7


def test_when_no_state_is_whole_the_run_does_not_begin_anew_by_itself(tmp_path):
    kept = checkpoint.Checkpoints(tmp_path)
    kept.save(1, {"a": jnp.ones(3)})
    (tmp_path / "1" / "manifest.json").write_text("{")
    with (
        pytest.warns(UserWarning, match="manifest.json cannot be read"),
        pytest.raises(RunError, match=r"no state in .* is whole\. --fresh"),
    ):
        kept.latest_whole()


def test_after_a_damaged_state_later_ones_do_not_push_out_whole_ones(tmp_path):
    kept = checkpoint.Checkpoints(tmp_path)
    for step in (1, 9):
        kept.save(step, {"a": jnp.ones(3)})
    kept.save(5, {"a": jnp.ones(3)})  # went on from 1, because 9 was damaged
    assert kept.steps() == [1, 5]


def bent(packed, **changes):
    return {**packed, **{name.replace("_", "."): change for name, change in changes.items()}}


def test_arrays_are_exactly_those_of_the_network():
    model = pruning.prune(architectures.create("lenet300", rngs=0), "magnitude", density=0.1)
    packed = checkpoint.pack(model)
    kernel, mask, bias = packed["linear3.kernel"], packed["linear3.mask"], packed["linear3.bias"]
    wrong = [
        ({"linear3_kernel": kernel[:1]}, "holds 1 weights of linear3, whose mask keeps 100"),
        ({"linear3_kernel": kernel[:, None]}, "kernel of linear3 has another size or type"),
        ({"linear3_kernel": kernel.astype(np.float64)}, "kernel of linear3 has another size or type"),
        ({"linear3_kernel": np.full_like(kernel, np.nan)}, "values of linear3.kernel that are not finite"),
        ({"linear3_bias": bias[:1]}, "bias of linear3 has another size or type"),
        ({"linear3_bias": bias.astype(np.int8)}, "bias of linear3 has another size or type"),
        ({"linear3_bias": np.full_like(bias, np.inf)}, "values of linear3.bias that are not finite"),
        ({"linear3_mask": mask.astype(bool)}, "mask of linear3 has another size or type"),
        ({"linear3_mask": ~mask}, "whose mask keeps 900"),
        ({"linear9_bias": bias}, "it has linear9.bias"),
    ]
    for change, says in wrong:
        with pytest.raises(FileError, match=says):
            checkpoint.unpack(architectures.create("lenet300", rngs=1), bent(packed, **change))


def stored(tmp_path, **about):
    """A checkpoint of one array whose metadata was replaced."""
    import tensorstore as ts

    checkpoint.save_arrays(tmp_path / "arrays", {"w": np.ones(8, np.float32)})
    base = {"driver": "file", "path": f"{tmp_path}/arrays/"}
    store = ts.KvStore.open({"driver": "ocdbt", "base": base}).result()
    found = json.loads(store.read("w/.zarray").result().value)
    chunk = about.pop("chunk", None)
    store.write("w/.zarray", json.dumps({**found, **about}).encode()).result()
    if chunk is not None:
        store.write("w/0", chunk).result()
    return tmp_path / "arrays"


@pytest.mark.parametrize(
    "about",
    [
        {"shape": [2**40], "chunks": [2**40]},
        {"shape": [8], "chunks": [2**40]},
        {"shape": [2**40], "chunks": [8]},
        {"shape": [-1]},
        {"shape": "large"},
        {"shape": [1] * 64, "chunks": [1] * 64},
        {"shape": [2**62, 2**62], "chunks": [2**62, 2**62]},
        {"dtype": "|O"},
        {"dtype": "<f8"},
        {"dtype": "|b1"},
        {"dtype": "nonsense"},
        {"compressor": None},
        {"compressor": {"id": "blosc"}},
        {"filters": [{"id": "delta"}]},
        {"order": "F"},
        {"zarr_format": 3},
        {"chunk": b""},
        {"chunk": b"garbage"},
        {"chunk": zstandard.compress(bytes(2**24))},
        {"chunk": zstandard.ZstdCompressor(write_content_size=False).compress(bytes(2**24))},
        {"chunk": zstandard.compress(bytes(32))[:-3]},
    ],
)
def test_an_array_that_is_not_what_it_should_be_is_refused_before_it_is_unpacked(tmp_path, about):
    from nttzoo.checkpoint.arrays import Stored

    folder = stored(tmp_path, **about)
    tracemalloc.start()
    with pytest.raises(FileError, match=r"arrays"):
        checkpoint.load_arrays(folder, {"w": Stored((8,), np.dtype(np.float32))})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**23
