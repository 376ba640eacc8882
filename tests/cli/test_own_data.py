import numpy as np
import onnxruntime
import pytest
from own_files import SEARCH, run, save_npz
from PIL import Image

import nttzoo
from nttzoo import data, zoo
from nttzoo.errors import DataError, NttzooError, ShapeError


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"x_test": None}, DataError, "lacks x_test; it must hold .* and has x_train, y_train, y_test"),
        ({"y_train": np.zeros(240)}, ShapeError, "y_train of 'bad' must be 240 integers"),
        ({"y_train": np.zeros(3, int)}, ShapeError, "one per image"),
        ({"x_train": np.zeros(240)}, ShapeError, r"must be images \[n, h, w, c\], sequences .* or features"),
        ({"x_train": np.zeros((240, 6, 6, 1), int)}, ShapeError, "uint8 or floating point"),
        ({"x_train": np.full((240, 6, 6, 1), np.nan)}, DataError, "NaN"),
        ({"x_test": np.zeros((60, 5, 6, 1), np.uint8)}, ShapeError, r"differ in shape: \[6, 6, 1\] and \[5, 6, 1\]"),
        ({"y_train": np.full(240, -1)}, DataError, "labels outside"),
        ({"classes": np.array(["a", "b"])}, DataError, r"labels outside 0 \.\.\. 1"),
        ({"x_train": np.array([None] * 240)}, DataError, "cannot be read: it holds pickled Python objects"),
        ({"x_train": np.zeros((0, 6, 6, 1)), "y_train": np.zeros(0, int)}, ShapeError, "n > 0"),
        ({"x_train": np.zeros((240, 0, 6, 1))}, ShapeError, "n > 0"),
        ({"y_train": np.zeros(240, int), "y_test": np.zeros(60, int)}, DataError, "all labels are 0"),
    ],
)
def test_files_that_hold_no_data_are_refused(folder, change, error, says):
    save_npz(folder / "bad.npz", **change)
    with pytest.raises(error, match=says):
        data.own.register("bad.npz")


def test_labels_that_do_not_count_from_0_are_told(folder):
    save_npz(folder / "from1.npz", y_train=np.arange(240) % 3 + 1, y_test=np.ones(60, int))
    with pytest.warns(UserWarning, match=r"from1.npz has no training image of class 0: labels count from 0"):
        data.own.register("from1.npz")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("none.npz", "no file none.npz"),
        ("net.py:a_set", r"returned set; it must return \(x_train"),
        ("net.py:wants_more", "called without arguments: missing a required argument: 'path'"),
        ("net.py:lost", r"raised FileNotFoundError: .*lost.csv' \(net.py, line \d+\)"),
        ("net.py:none", r"raised TypeError: arrays\(\) takes 0 positional arguments"),
        ("nowhere", "neither an .npz file nor a folder"),
        ("mnist.npz", "'mnist' is a data set of nttzoo"),
    ],
)
def test_data_that_is_none_is_refused(folder, text, says):
    save_npz(folder / "mnist.npz")
    with pytest.raises(NttzooError, match=says):
        data.own.register(text)


def test_functions_sequences_and_gray_images_without_a_channel_axis(folder):
    found = data.load(data.own.register("net.py:arrays"))
    assert (found.name, found.input_shape, len(found.train), len(found.test)) == ("arrays", (6, 6), 9, 6)
    images, labels = np.zeros((9, 6, 5), np.uint8), np.arange(9) % 3
    np.savez("gray.npz", x_train=images, y_train=labels, x_test=images, y_test=labels)
    assert data.load(data.own.register("gray.npz")).input_shape == (6, 5, 1)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(5,), (4, 5)])  # features; sequences
def test_data_of_other_shapes_through_search_training_and_export(folder, shape):
    (folder / "flat.py").write_text(
        "from flax import nnx\nimport math\n"
        "class Flat(nnx.Module):\n"
        "    def __init__(self, rngs, input_shape):\n"
        "        self.head = nnx.Linear(math.prod(input_shape), 3, rngs=rngs)\n"
        "    def __call__(self, x):\n"
        "        return self.head(x.reshape(x.shape[0], -1))\n"
    )
    rng = np.random.default_rng(0)
    x, y = rng.normal(7, [1, 2, 3, 4, 5], (120, *shape)).astype(np.float32), np.arange(120) % 3
    np.savez("floats.npz", x_train=x, y_train=y, x_test=x[:9], y_test=y[:9])
    own = ["--model", "flat.py:Flat"]
    run("search", *own, "--data", "floats.npz", *SEARCH, "--out", "run")
    run("train", *own, "--data", "floats.npz", "--start", "run", "--epochs", 1)
    trained = zoo.load(folder / "run", weights="trained")
    channels = x.reshape(-1, 5)
    standardized = (x - channels.mean(0)) / channels.std(0)
    kernel = np.asarray(trained.head.masked_kernel())
    expected = standardized.reshape(120, -1) @ kernel + np.asarray(trained.head.bias[...])
    run("export", *own, "run", "net.onnx")
    (answers,) = onnxruntime.InferenceSession("net.onnx").run(
        None, {"images": np.asarray(trained.input_spec.standardize(x))}
    )
    np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(nttzoo.compile(folder / "net.onnx")(standardized), expected, rtol=1e-4, atol=1e-4)


def write_images(root, per_class, size=(5, 4), mode="L"):
    rng = np.random.default_rng(0)
    shape = (*size, 3) if mode == "RGB" else size
    for label in ("cat", "dog"):
        (root / label).mkdir(parents=True)
        for i in range(per_class):
            Image.fromarray(rng.integers(0, 256, shape).astype(np.uint8)).save(root / label / f"{i:02}.png")


def test_a_folder_of_images_per_class(folder):
    write_images(folder / "pets", 6)
    pets = data.load(data.own.register("pets/"))
    assert (pets.classes, pets.input_shape) == (("cat", "dog"), (5, 4, 1))
    assert pets.train.labels.tolist() == [0] * 5 + [1] * 5
    last = np.asarray(Image.open(folder / "pets/dog/05.png"))
    np.testing.assert_array_equal(pets.test.images[1, ..., 0], last)
    write_images(folder / "split/train", 2, mode="RGB")
    write_images(folder / "split/test", 1, mode="RGB")
    split = data.own.from_folder("split")
    assert (len(split.train), len(split.test), split.input_shape) == (4, 2, (5, 4, 3))


def test_folders_that_hold_no_data_are_refused(folder):
    write_images(folder / "few", 3)
    with pytest.raises(DataError, match="fewer than 6 images"):
        data.own.from_folder("few")
    write_images(folder / "mixed", 6)
    Image.new("L", (9, 9)).save(folder / "mixed/dog/03.png")
    with pytest.raises(DataError, match="9 x 9 pixels, the images before it are 5 x 4"):
        data.own.from_folder("mixed")
    (folder / "mixed/cat/00.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"00\.png cannot be read as an image"):
        data.own.from_folder("mixed")
    (folder / "empty/cat").mkdir(parents=True)
    with pytest.raises(DataError, match="no images in cat"):
        data.own.from_folder("empty")
    write_images(folder / "odd/train", 1)
    write_images(folder / "odd/test", 1)
    (folder / "odd/test/dog").rename(folder / "odd/test/fox")
    with pytest.raises(DataError, match="does not have: fox"):
        data.own.from_folder("odd")
