"""The NumPy transformer of every family: its gradients, with dropout too, and what it drops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from model_cases import CONFIGS, SIZES

from primepar.models import ModelConfig
from primepar.models.dropout import Draw
from primepar.reference.oracle.layers import Array, Tokens
from primepar.reference.oracle.transformer import Transformer

DROPOUTS: dict[str, Any] = {"embedding_dropout": 0.1, "dropout": 0.2, "attention_dropout": 0.3}
NONE: dict[str, Any] = dict.fromkeys(DROPOUTS, 0.0)
MIXED = ModelConfig.of(
    "gpt", **SIZES, kv_heads=2, norm="rms", gated=True, positions="alibi", embedding_norm=True
)
EVERY = {**CONFIGS, "mixed": MIXED}
DRAW = Draw(seed=5, step=7)
every_model = pytest.mark.parametrize("name", EVERY)


def drawn_model(config: ModelConfig) -> Transformer:
    """Return a model all of whose parameters matter: none is left at zero or at one."""
    generator = np.random.default_rng(0)
    parameters: dict[str, Array] = {
        name: generator.normal(float("norm" in name and "bias" not in name), 0.3, shape)
        for name, shape in config.parameter_shapes.items()
    }
    return Transformer(config, parameters)


def drawn_batch(config: ModelConfig) -> tuple[Tokens, Tokens]:
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
