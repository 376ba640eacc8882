import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from blobs import SHAPE, Small, arrays, blobs, config, same, small
from flax import nnx

from nttzoo import nn, training
from nttzoo.architectures import create
from nttzoo.errors import TrainingError
from nttzoo.sparsity.pruning import prune
from nttzoo.training import accuracy, fit, jax_steps
from nttzoo.training.history import SERIES


def standardized(data):
    return jnp.asarray((data.train.images - data.mean) / data.std, jnp.float32), jnp.asarray(data.train.labels)


def cross_entropy(logits, labels):
    return -jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels].mean()


def half_squared_distance(logits, labels):
    return 0.5 * ((logits - jnp.eye(3)[labels]) ** 2).sum(1).mean()


def test_training_lowers_the_loss_and_learns():
    model, data = small(), blobs()
    history = fit(model, data, config(epochs=8))
    assert history.train_loss[-1] < 0.5 * history.train_loss[0]
    assert history.test_accuracy[-1] == accuracy(model, data) >= 0.9


def test_the_history_has_one_entry_per_epoch():
    history = fit(small(), blobs(), config(epochs=3, validation=0.2))
    for name in SERIES:
        values = getattr(history, name)
        assert len(values) == 3
        assert np.all(np.isfinite(values))
    assert all(0 <= a <= 1 for a in history.train_accuracy + history.validation_accuracy + history.test_accuracy)


def test_no_epochs_change_nothing():
    model = small()
    history = fit(model, blobs(), config(epochs=0))
    assert same(model, small())
    assert history.train_loss == []


def test_without_validation_its_accuracy_is_nan_and_none_in_json():
    history = fit(small(), blobs(), config(epochs=1, validation=0))
    assert np.isnan(history.validation_accuracy).all()
    assert history.to_dict()["validation_accuracy"] == [None]
    assert history.to_dict()["test_accuracy"] == history.test_accuracy


@pytest.mark.parametrize(
    ("options", "tx", "loss"),
    [
        ({}, optax.adam(0.01), cross_entropy),
        ({"optimizer": "sgd", "loss": "squared"}, optax.sgd(0.01), half_squared_distance),
    ],
    ids=["adam, cross-entropy", "sgd, squared"],
)
def test_full_batch_steps_on_lenet300_are_plain_optax_steps(options, tx, loss):
    data = blobs(12)
    model = create("lenet300", num_classes=3, input_shape=SHAPE, rngs=0)
    x, y = standardized(data)
    params = {name: {k: v for k, v in arrays(model)[name].items() if k != "mask"} for name in arrays(model)}

    def forward(params, x):
        x = x.reshape(len(x), -1)
        for name in ("linear1", "linear2", "linear3"):
            x = x @ params[name]["kernel"] + params[name]["bias"][None]
            x = x if name == "linear3" else jnp.maximum(x, 0)
        return x

    @jax.jit
    def step(params, state):
        value, grads = jax.value_and_grad(lambda p: loss(forward(p, x), y))(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    state, values = tx.init(params), []
    for _ in range(3):
        params, state, value = step(params, state)
        values.append(value)
    history = fit(model, data, config(epochs=3, batch_size=12, validation=0, **options))
    np.testing.assert_allclose(history.train_loss, values, rtol=1e-4)
    for name, expected in params.items():
        for kind, array in expected.items():
            np.testing.assert_allclose(arrays(model)[name][kind], array, rtol=1e-3, atol=2e-5)


def test_an_epoch_takes_each_example_once():
    data = blobs(4)
    x, y = standardized(data)
    trained = small()
    fit(trained, data, config(epochs=1, batch_size=2, validation=0, optimizer="sgd", learning_rate=0.5))
    graph, params, rest = nn.split_params(small())

    @jax.jit
    def step(params, chosen):
        loss = lambda p: cross_entropy(nnx.merge(graph, p, rest)(x[chosen]), y[chosen])  # noqa: E731
        return jax.tree.map(lambda p, g: p - 0.5 * g, params, jax.grad(loss)(params))

    matches = []
    for first in itertools.combinations(range(4), 2):
        second = [i for i in range(4) if i not in first]
        two_steps = step(step(params, jnp.array(first)), jnp.array(second))
        expected = nnx.to_pure_dict(two_steps)["first"]["kernel"]
        matches.append(np.allclose(trained.first.kernel[...], expected, atol=1e-5))
    assert sum(matches) == 1, "the two steps are those of exactly one way to halve the examples"


def test_the_same_seed_gives_the_same_weights_bit_for_bit_and_another_does_not():
    data, models = blobs(), [small() for _ in range(3)]
    histories = [fit(model, data, config(seed=seed)) for model, seed in zip(models, (1, 1, 2), strict=True)]
    assert same(models[0], models[1])
    assert not same(models[0], models[2])
    assert histories[0].train_loss == histories[1].train_loss


@pytest.mark.parametrize("optimizer", ["adam", "sgd", optax.adamw(0.01, weight_decay=0.5)])
def test_pruned_weights_stay_pruned(optimizer):
    model, data = prune(small(), "random", density=0.2, rngs=0), blobs()
    before = arrays(model)
    fit(model, data, config(optimizer=optimizer))
    after = arrays(model)
    for name in ("first", "second"):
        np.testing.assert_array_equal(before[name]["mask"], after[name]["mask"])
        kept = after[name]["mask"]
        assert np.any(before[name]["kernel"][kept] != after[name]["kernel"][kept])
    x = np.asarray(standardized(data)[0])
    hidden = np.maximum(
        x.reshape(len(x), -1) @ (after["first"]["kernel"] * after["first"]["mask"]) + after["first"]["bias"], 0
    )
    expected = hidden @ (after["second"]["kernel"] * after["second"]["mask"]) + after["second"]["bias"]
    np.testing.assert_allclose(model(x), expected, rtol=1e-4, atol=1e-4)


def test_a_loss_that_is_not_finite_raises_and_names_the_learning_rate():
    model = small()
    with pytest.raises(TrainingError, match=r"epoch 1: .*not finite.*smaller learning rate than 1e\+30") as caught:
        fit(model, blobs(), config(optimizer="sgd", loss="squared", learning_rate=1e30))
    assert isinstance(caught.value, ArithmeticError)
    assert same(model, small()), "no epoch was completed"


def test_after_a_breakdown_the_model_holds_the_last_completed_epoch():
    data, steps = blobs(40), 5
    schedule = lambda step: jnp.where(step < steps, 0.01, 1e30)  # noqa: E731
    options = {"batch_size": 8, "validation": 0, "optimizer": optax.sgd(schedule), "loss": "squared"}
    model, one_epoch = small(), small()
    with pytest.raises(TrainingError, match=r"epoch 2.*holds the weights of epoch 1"):
        fit(model, data, config(epochs=3, **options))
    fit(one_epoch, data, config(epochs=1, **options))
    assert same(model, one_epoch)
    assert not same(model, small())


def test_after_ctrl_c_the_model_holds_the_last_completed_epoch(monkeypatch):
    model, one_epoch, data = small(), small(), blobs()
    fit(one_epoch, data, config(epochs=1))
    evaluate, parts = training.make_evaluator(model, data), []

    def interrupted(params, rest, part):
        parts.append(part)
        if len(parts) == 3:  # an epoch evaluates twice: validation and test
            raise KeyboardInterrupt
        return evaluate(params, rest, part)

    monkeypatch.setattr(jax_steps, "make_evaluator", lambda *_: interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit(model, data, config(epochs=5))
    assert same(model, one_epoch)


def test_an_optimizer_and_a_loss_of_ones_own():
    def away_from_target(logits, labels):
        return jnp.abs(logits - jax.nn.one_hot(labels, 3)).sum(-1)

    model = small()
    signs = optax.chain(optax.scale_by_sign(), optax.scale(-0.001))
    history = fit(
        model, blobs(16), config(epochs=1, batch_size=16, validation=0, optimizer=signs, loss=away_from_target)
    )
    moved = np.abs(model.first.kernel[...] - small().first.kernel[...])
    np.testing.assert_allclose(moved, 0.001, rtol=1e-3)
    x, y = standardized(blobs(16))
    np.testing.assert_allclose(history.train_loss, [away_from_target(small()(x), y).mean()], rtol=1e-5)


@pytest.mark.slow
def test_conv4_trains_with_dropout_and_keeps_its_mode():
    data = blobs(8, 4, shape=(16, 16, 1))
    model = create("conv4", num_classes=3, input_shape=(16, 16, 1), rngs=0)
    model.eval()
    before = arrays(model)
    history = fit(model, data, config(epochs=1, batch_size=4, validation=0, learning_rate=1e-9, optimizer="sgd"))
    assert model.dropout1.deterministic
    assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (before, arrays(model))), strict=True))
    x, y = standardized(data)
    without_dropout = cross_entropy(nnx.jit(lambda model, x: model(x))(model, x), y)
    assert abs(history.train_loss[0] - without_dropout) > 1e-3, "dropout is on in training"
    assert history.test_accuracy[0] == accuracy(model, data), "and off in evaluation"


class Normed(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.linear = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, images):
        return self.linear(self.norm(images.reshape(len(images), -1)))


def test_batch_statistics_are_trained_along_in_any_nnx_model():
    model, data = Normed(nnx.Rngs(0)), blobs(16)
    fit(model, data, config(epochs=1, batch_size=16, validation=0))
    x, _ = standardized(data)
    batch_mean = x.reshape(16, -1).mean(0)
    np.testing.assert_allclose(model.norm.mean[...], 0.01 * batch_mean, rtol=1e-3, atol=1e-5)  # momentum 0.99


def test_accuracy_counts_hits_whatever_the_batches(monkeypatch):
    model, data = small(), blobs(40, 17)
    x = jnp.asarray((data.test.images - data.mean) / data.std, jnp.float32)
    expected = float((model(x).argmax(1) == data.test.labels).mean())
    assert accuracy(model, data) == pytest.approx(expected)
    monkeypatch.setattr(jax_steps, "EVALUATION_BATCH", 5)
    assert accuracy(model, data) == pytest.approx(expected)
    x, y = standardized(data)
    assert accuracy(model, data, data.train) == pytest.approx(float((model(x).argmax(1) == y).mean()))


def test_without_dropout_a_network_trains_as_if_it_had_none():
    class Dropping(Small):
        def __init__(self, rngs):
            super().__init__(rngs)
            self.dropout = nnx.Dropout(0.9, rngs=nnx.Rngs(7))

        def __call__(self, images, *, rngs=None):
            return super().__call__(self.dropout(images, rngs=rngs))

    with_dropout, without, plain = Dropping(nnx.Rngs(0)), Dropping(nnx.Rngs(0)), small()
    fit(with_dropout, blobs(), config())
    fit(without, blobs(), config(dropout=False))
    fit(plain, blobs(), config())
    assert same(without, plain)
    assert not same(with_dropout, plain)
