"""Peer: two models of Keras as .onnx files. Argument: folder."""

import sys
from pathlib import Path

import keras
import tensorflow as tf
import tf2onnx


def main(folder: str) -> None:
    """Writes a dense network and a convolutional one."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    layers = keras.layers
    models = {
        "mlp": keras.Sequential(
            [keras.Input((20,)), layers.Dense(16, "relu"), layers.Dropout(0.2), layers.Dense(5, "softmax")]
        ),
        "cnn": keras.Sequential(
            [
                keras.Input((16, 16, 3)),
                layers.Conv2D(8, 3, padding="same"),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.MaxPooling2D(),
                layers.DepthwiseConv2D(3),
                layers.LeakyReLU(),
                layers.Flatten(),
                layers.Dense(10, "softmax"),
            ]
        ),
    }
    for name, model in models.items():
        taken = (tf.TensorSpec((None, *model.input_shape[1:]), tf.float32, name="x"),)
        function = tf.function(lambda x, model=model: model(x, training=False), input_signature=taken)
        tf2onnx.convert.from_function(function, taken, opset=17, output_path=str(Path(folder) / f"{name}.onnx"))


if __name__ == "__main__":
    main(sys.argv[1])
