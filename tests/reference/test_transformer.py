"""The NumPy transformer of every family: its gradients and dropout, its training, its refusals."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from model_cases import CONFIGS, SIZES, difference

from primepar.errors import ConfigError
from primepar.models import GPTConfig, ModelConfig
from primepar.models.dropout import Draw
from primepar.reference.oracle.layers import Array, Tokens
from primepar.reference.oracle.train import AdamW, linear_weights, windows
from primepar.reference.oracle.transformer import Transformer

CONFIG = GPTConfig(layers=2, hidden=12, heads=3, context=6, vocabulary=20)
DROPOUTS: dict[str, Any] = {"embedding_dropout": 0.1, "dropout": 0.2, "attention_dropout": 0.3}
NONE: dict[str, Any] = dict.fromkeys(DROPOUTS, 0.0)
MIXED = ModelConfig.of(
    "gpt", **SIZES, kv_heads=2, norm="rms", gated=True, positions="alibi", embedding_norm=True
)
EVERY = {**CONFIGS, "gpt": CONFIG, "mixed": MIXED}
DRAW = Draw(seed=5, step=7)
every_model = pytest.mark.parametrize("name", EVERY)
TEXT = b"she sells sea shells by the sea shore. " * 4


def drawn_model(config: ModelConfig = CONFIG) -> Transformer:
    """Return a model all of whose parameters matter: none is left at zero or at one."""
    generator = np.random.default_rng(0)
    parameters: dict[str, Array] = {
        name: generator.normal(float("norm" in name and "bias" not in name), 0.3, shape)
        for name, shape in config.parameter_shapes.items()
    }
    return Transformer(config, parameters)


def drawn_batch(config: ModelConfig = CONFIG) -> tuple[Tokens, Tokens]:
    """Return random tokens and targets."""
    tokens, targets = np.random.default_rng(1).integers(0, config.vocabulary, (2, 2, 6))
    return tokens, targets


def slope(model: Transformer, name: str, direction: Array) -> float:
    """Return the change of the loss along a direction of one parameter, by differences."""
    step, losses = 1e-5, []
    for sign in (1, -1):
        moved = {**model.parameters, name: model.parameters[name] + sign * step * direction}
        other = Transformer(model.config, moved)
        losses.append(other.loss(*drawn_batch(model.config), DRAW))
    return (losses[0] - losses[1]) / (2 * step)


@every_model
def test_every_gradient_is_the_slope_of_the_loss_with_dropout(name: str) -> None:
    model = drawn_model(replace(EVERY[name], **DROPOUTS))
    _, gradients = model.loss_and_gradients(*drawn_batch(model.config), DRAW)
    assert gradients.keys() == model.config.parameter_shapes.keys()
    for parameter, gradient in gradients.items():
        direction = np.random.default_rng(2).normal(size=gradient.shape)
        along = float((gradient * direction).sum())
        expected = pytest.approx(along, rel=1e-6, abs=1e-8)
        assert slope(model, parameter, direction) == expected, parameter


@every_model
def test_a_model_in_float32_stays_there(name: str) -> None:
    config = replace(EVERY[name], **DROPOUTS)
    model = Transformer.initial(config, dtype=np.float32)
    _, gradients = model.loss_and_gradients(*drawn_batch(config), DRAW)
    assert model.logits(drawn_batch(config)[0]).dtype == np.float32
    assert {gradient.dtype for gradient in gradients.values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("dropped", DROPOUTS)
def test_every_dropout_changes_the_loss_at_every_step(dropped: str) -> None:
    model = drawn_model(replace(CONFIGS["llama"], **NONE | {dropped: 0.5}))
    batch = drawn_batch(model.config)
    losses = {model.loss(*batch), *(model.loss(*batch, Draw(0, step)) for step in range(4))}
    assert len(losses) == 5


def test_a_draw_changes_nothing_where_no_dropout_is_asked_for() -> None:
    model = drawn_model(replace(CONFIGS["gpt2"], **NONE))
    batch = drawn_batch(model.config)
    assert model.loss(*batch, DRAW) == model.loss(*batch)


def test_the_loss_alone_is_the_loss_with_gradients() -> None:
    model = drawn_model()
    assert model.loss(*drawn_batch()) == model.loss_and_gradients(*drawn_batch())[0]


def test_a_text_shorter_than_the_context_is_allowed() -> None:
    model, (tokens, _) = drawn_model(), drawn_batch()
    short, whole = model.logits(tokens[:, :4]), model.logits(tokens)
    assert difference(short, whole[:, :4]) < 1e-12


def test_a_model_in_float32_agrees_with_float64() -> None:
    batch = drawn_batch()
    loss, gradients = Transformer.initial(CONFIG).loss_and_gradients(*batch)
    small, rough = Transformer.initial(CONFIG, dtype=np.float32).loss_and_gradients(*batch)
    assert small == pytest.approx(loss, rel=1e-6)
    for name, gradient in gradients.items():
        assert difference(rough[name].astype(np.float64), gradient) < 1e-5, name


def test_the_first_loss_is_that_of_a_model_that_knows_nothing() -> None:
    model = Transformer.initial(GPTConfig(layers=1, hidden=8, heads=2, context=6, vocabulary=20))
    assert model.loss(*drawn_batch()) == pytest.approx(np.log(20), abs=0.01)


def trained(steps: int, dtype: type[np.floating[Any]] = np.float64) -> list[float]:
    """Return the losses of a small model on a repeated text."""
    config = GPTConfig(layers=1, hidden=16, heads=2, context=8, vocabulary=128)
    model = Transformer.initial(config, dtype=dtype)
    optimizer = AdamW(0.01, weight_decay=0.1, decayed=linear_weights(config))
    batches, losses = windows(TEXT, batch=4, context=config.context), []
    for batch in itertools.islice(batches, steps):
        loss, gradients = model.loss_and_gradients(*batch)
        model.parameters = optimizer.step(model.parameters, gradients)
        losses.append(loss)
    assert {array.dtype for array in model.parameters.values()} == {np.dtype(dtype)}
    return losses


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_training_on_a_repeated_text_reduces_the_loss(dtype: type[np.floating[Any]]) -> None:
    losses = trained(60, dtype)
    assert len(losses) == 60
    assert losses[0] == pytest.approx(np.log(128), abs=0.1)
    assert losses[-1] < losses[0] / 2


def test_targets_are_the_tokens_one_place_further_on() -> None:
    tokens, targets = next(windows(bytes(range(100)), batch=5, context=7, seed=3))
    assert tokens.shape == targets.shape == (5, 7)
    assert np.array_equal(targets, tokens + 1)
    assert np.array_equal(tokens[:, 1:], targets[:, :-1])


def test_every_window_of_a_text_can_be_drawn() -> None:
    batches = itertools.islice(windows(b"abcd", batch=20, context=2), 1)
    assert {int(start) for tokens, _ in batches for start in tokens[:, 0]} == set(b"ab")


@pytest.mark.parametrize("shape", [(2, 7), (6,), (0, 6), (2, 0)])
def test_tokens_of_a_wrong_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as error:
        drawn_model().logits(np.zeros(shape, dtype=np.int64))
    expected = (
        f"tokens: expected shape (batch, positions) with 1 to 6 positions (context=6), got {shape}"
    )
    assert str(error.value) == expected


@pytest.mark.parametrize("token", [20, -1])
def test_a_token_out_of_the_vocabulary_is_refused(token: int) -> None:
    tokens, targets = drawn_batch()
    targets[1, 4] = token
    with pytest.raises(ConfigError) as error:
        drawn_model().loss(tokens, targets)
    expected = f"targets: expected tokens from 0 to 19 (vocabulary=20), got {token} at [1, 4]"
    assert str(error.value) == expected


def test_targets_of_another_shape_than_the_tokens_are_refused() -> None:
    tokens, targets = drawn_batch()
    with pytest.raises(ConfigError) as error:
        drawn_model().loss(tokens, targets[:, :-1])
    assert str(error.value) == "targets: expected the shape of the tokens, (2, 6), got (2, 5)"


def test_a_missing_parameter_is_refused() -> None:
    parameters = dict(drawn_model().parameters)
    del parameters["norm.bias"]
    with pytest.raises(ConfigError) as error:
        Transformer(CONFIG, parameters)
    assert str(error.value) == "norm.bias: expected shape (12,), got no such parameter"


def test_a_parameter_of_another_shape_is_refused() -> None:
    parameters = {**drawn_model().parameters, "head.weight": np.zeros((20, 12))}
    with pytest.raises(ConfigError) as error:
        Transformer(CONFIG, parameters)
    assert str(error.value) == "head.weight: expected shape (12, 20), got (20, 12)"


def test_an_unknown_parameter_is_refused() -> None:
    parameters = {**drawn_model().parameters, "head.bias": np.zeros(20)}
    with pytest.raises(ConfigError) as error:
        Transformer(CONFIG, parameters)
    expected = (
        f"parameters: expected names like {next(iter(CONFIG.parameter_shapes))!r}, of "
        "gpt.parameter_shapes, got 'head.bias'"
    )
    assert str(error.value) == expected
