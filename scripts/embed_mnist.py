"""Makes nttzoo/_data/mnist5k.npz, the embedded sample, from the full MNIST."""

import argparse
from pathlib import Path

import numpy as np

from nttzoo import data


def first_of_each(part: data.Labeled, per_class: int) -> np.ndarray:
    """Indices of the first `per_class` examples of each digit, in the original order."""
    return np.sort(np.concatenate([np.flatnonzero(part.labels == digit)[:per_class] for digit in range(10)]))


def main() -> None:
    """Writes the sample: 500 training and 100 test images of each digit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    mnist = data.load("mnist", data_dir=parser.parse_args().data_dir)
    train, test = first_of_each(mnist.train, 500), first_of_each(mnist.test, 100)
    target = Path(__file__).parents[1] / "nttzoo" / "_data" / "mnist5k.npz"
    np.savez_compressed(
        target,
        x_train=mnist.train.images[train],
        y_train=mnist.train.labels[train].astype(np.uint8),
        x_test=mnist.test.images[test],
        y_test=mnist.test.labels[test].astype(np.uint8),
    )
    print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
