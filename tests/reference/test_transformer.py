"""The NumPy transformer: its gradients, its training, and what it refuses."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from primepar.errors import ConfigError
from primepar.models import GPTConfig, ModelConfig
from primepar.reference.oracle.layers import Array, Tokens
from primepar.reference.oracle.train import SGD, AdamW, linear_weights, windows
from primepar.reference.oracle.transformer import Transformer

CONFIG = GPTConfig(layers=2, hidden=12, heads=3, context=6, vocabulary=20)
TEXT = b"she sells sea shells by the sea shore. " * 4


def drawn_model(config: ModelConfig = CONFIG, seed: int = 0) -> Transformer:
    """Return a model all of whose parameters matter: none is left at zero or at one."""
    generator = np.random.default_rng(seed)
    parameters: dict[str, Array] = {
        name: generator.normal(float("norm" in name), 0.3, shape)
        for name, shape in config.parameter_shapes.items()
    }
    return Transformer(config, parameters)


def drawn_batch(config: ModelConfig = CONFIG, batch: int = 2) -> tuple[Tokens, Tokens]:
    """Return random tokens and targets."""
    shape = (2, batch, config.context)
    tokens, targets = np.random.default_rng(1).integers(0, config.vocabulary, shape)
    return tokens, targets


def difference(got: Array, expected: Array) -> float:
    """Return the largest difference by the largest expected element."""
    assert got.shape == expected.shape
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def slope(model: Transformer, name: str, direction: Array) -> float:
    """Return the change of the loss along a direction of one parameter, by differences."""
    step, losses = 1e-5, []
    for sign in (1, -1):
        moved = {**model.parameters, name: model.parameters[name] + sign * step * direction}
        losses.append(Transformer(model.config, moved).loss(*drawn_batch()))
    return (losses[0] - losses[1]) / (2 * step)


@pytest.mark.parametrize("name", CONFIG.parameter_shapes)
def test_a_gradient_is_the_slope_of_the_loss(name: str) -> None:
    model = drawn_model()
    _, gradients = model.loss_and_gradients(*drawn_batch())
    direction = np.random.default_rng(2).normal(size=gradients[name].shape)
    along = float((gradients[name] * direction).sum())
    assert slope(model, name, direction) == pytest.approx(along, rel=1e-7, abs=1e-9)


def test_gradients_come_by_the_names_and_shapes_of_the_parameters() -> None:
    _, gradients = drawn_model().loss_and_gradients(*drawn_batch())
    shapes = {name: gradient.shape for name, gradient in gradients.items()}
    assert shapes == CONFIG.parameter_shapes


def test_the_loss_alone_is_the_loss_with_gradients() -> None:
    model = drawn_model()
    assert model.loss(*drawn_batch()) == model.loss_and_gradients(*drawn_batch())[0]


def torch_loss(torch: Any, parameters: dict[str, Any], batch: tuple[Tokens, Tokens]) -> Any:
    """Write the model again with torch's own operators."""
    functional, heads, size = torch.nn.functional, CONFIG.heads, CONFIG.head_dim

    def norm(name: str, x: Any) -> Any:
        weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        return functional.layer_norm(x, (CONFIG.hidden,), weight, bias, 1e-5)

    def linear(name: str, x: Any) -> Any:
        return functional.linear(x, parameters[f"{name}.weight"].T)

    tokens, targets = (torch.tensor(array) for array in batch)
    x = functional.embedding(tokens, parameters["embedding.token"])
    x = x + parameters["embedding.position"][: tokens.shape[1]]
    for block in (f"blocks.{layer}" for layer in range(CONFIG.layers)):
        columns = linear(f"{block}.qkv", norm(f"{block}.norm1", x)).split(size, dim=-1)
        qkv = (torch.stack([columns[3 * a + i] for a in range(heads)], 1) for i in range(3))
        mixed = functional.scaled_dot_product_attention(*qkv, is_causal=True)
        x = x + linear(f"{block}.proj", torch.cat(mixed.unbind(1), -1))
        inner = linear(f"{block}.fc1", norm(f"{block}.norm2", x))
        x = x + linear(f"{block}.fc2", functional.gelu(inner, approximate="tanh"))
    logits = linear("head", norm("norm", x))
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_loss_and_gradients_agree_with_torch() -> None:
    torch = pytest.importorskip("torch")
    model, batch = drawn_model(), drawn_batch()
    leaves = {
        name: torch.tensor(parameter, requires_grad=True)
        for name, parameter in model.parameters.items()
    }
    expected = torch_loss(torch, leaves, batch)
    expected.backward()
    loss, gradients = model.loss_and_gradients(*batch)
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    for name, leaf in leaves.items():
        assert difference(gradients[name], leaf.grad.numpy()) < 1e-10, name


def test_a_text_shorter_than_the_context_is_allowed() -> None:
    model, (tokens, _) = drawn_model(), drawn_batch()
    short, whole = model.logits(tokens[:, :4]), model.logits(tokens)
    assert difference(short, whole[:, :4]) < 1e-12


def test_a_model_in_float32_stays_there_and_agrees_with_float64() -> None:
    batch = drawn_batch()
    loss, gradients = Transformer.initial(CONFIG).loss_and_gradients(*batch)
    small, rough = Transformer.initial(CONFIG, dtype=np.float32).loss_and_gradients(*batch)
    assert {gradient.dtype for gradient in rough.values()} == {np.dtype(np.float32)}
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


def test_one_step_of_sgd_on_one_batch_reduces_its_loss() -> None:
    model, batch = drawn_model(), drawn_batch()
    before, gradients = model.loss_and_gradients(*batch)
    model.parameters = SGD(0.01).step(model.parameters, gradients)
    assert model.loss(*batch) < before


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
