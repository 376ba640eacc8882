"""Peer: seven models of scikit-learn as .onnx files. Argument: folder."""

import sys
from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler


def main(folder: str) -> None:
    """Fits each model on a few random numbers and writes it."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 6)).astype(np.float32)
    values, classes = x @ rng.normal(size=6) + 0.1, rng.integers(0, 3, 200)
    models = {
        "linear": LinearRegression().fit(x, values),
        "ridge_scaled": make_pipeline(StandardScaler(), Ridge()).fit(x, values),
        "logistic": LogisticRegression().fit(x, classes),
        "logistic_binary": LogisticRegression().fit(x, classes > 0),
        "pca_logistic": make_pipeline(Normalizer(), PCA(3), LogisticRegression()).fit(x, classes),
        "mlp_classifier": make_pipeline(StandardScaler(), MLPClassifier(hidden_layer_sizes=(16, 8), max_iter=30)).fit(
            x, classes
        ),
        "mlp_regressor": MLPRegressor(hidden_layer_sizes=(16,), activation="tanh", max_iter=30).fit(x, values),
    }
    for name, model in models.items():
        (Path(folder) / f"{name}.onnx").write_bytes(to_onnx(model, x[:1]).SerializeToString())


if __name__ == "__main__":
    main(sys.argv[1])
