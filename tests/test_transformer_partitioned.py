"""The transformer with every linear operator on emulated devices, beside the same on one device.

Legend: M rows (batch and positions), N input hidden, K output hidden.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from primepar.errors import ShapeError
from primepar.models import GPTConfig
from primepar.partition import parse_sequence
from primepar.reference.layers import Array, Tokens
from primepar.reference.optimizers import AdamW
from primepar.reference.train import train, windows
from primepar.reference.transformer import Transformer
from primepar.reference.transformer_emulated import emulated_linears
from primepar.reference.transformer_linears import LinearOperator, dense_linears

CONFIG = GPTConfig(layers=2, hidden=12, heads=2, context=6, vocabulary=24)
BATCH = 2
SEQUENCES = ["", "B2", "M2", "N2", "K2", "P1x1", "P2x2", "P3x3", "K,P2x2", "B,P2x2"]
every_sequence = pytest.mark.parametrize("text", SEQUENCES)

Result = tuple[float, dict[str, Array]]


@dataclass
class Rounded:
    """A linear operator that sees integers only, so that its sums are exact in any order.

    What comes is scaled by a power of two and rounded; what goes is scaled back.
    """

    inner: LinearOperator
    scale: float = 2.0**16

    def forward(self, I_MN: Array, W_NK: Array) -> Array:
        """Give O_MK of the rounded operands."""
        O_MK = self.inner.forward(np.rint(I_MN * self.scale), np.rint(W_NK * self.scale))
        return O_MK / self.scale**2

    def backward(self, dO_MK: Array) -> tuple[Array, Array]:
        """Give dI_MN and dW_NK of the rounded operands."""
        dI_MN, dW_NK = self.inner.backward(np.rint(dO_MK * self.scale))
        return dI_MN / self.scale**2, dW_NK / self.scale**2


def rounded(linears: Mapping[str, LinearOperator]) -> dict[str, LinearOperator]:
    """Return the same operators with rounded operands."""
    return {name: Rounded(operator) for name, operator in linears.items()}


def emulated(text: str) -> Mapping[str, LinearOperator]:
    """Return every linear operator on the devices of a sequence."""
    return emulated_linears(CONFIG, parse_sequence(text), BATCH)


def result(linears: Mapping[str, LinearOperator]) -> Result:
    """Return loss and gradients of one model on one batch, all of whose parameters matter."""
    generator = np.random.default_rng(0)
    parameters: dict[str, Array] = {
        name: generator.normal(float("norm" in name), 0.3, shape)
        for name, shape in CONFIG.parameter_shapes.items()
    }
    tokens: Tokens = generator.integers(0, CONFIG.vocabulary, (2, BATCH, CONFIG.context))
    return Transformer(CONFIG, parameters, linears).loss_and_gradients(*tokens)


def difference(got: Result, expected: Result) -> float:
    """Return the largest relative difference of the loss and of every gradient."""
    assert got[1].keys() == expected[1].keys()
    relative = [
        np.abs(got[1][name] - gradient).max() / np.abs(gradient).max()
        for name, gradient in expected[1].items()
    ]
    return float(max(abs(got[0] / expected[0] - 1), *relative))


@every_sequence
def test_with_integer_operands_a_partitioned_model_equals_the_dense_one(text: str) -> None:
    loss, gradients = result(rounded(emulated(text)))
    expected_loss, expected = result(rounded(dense_linears(CONFIG)))
    assert loss == expected_loss
    assert {name for name in expected if np.array_equal(gradients[name], expected[name])} == {
        *CONFIG.parameter_shapes
    }


@every_sequence
def test_a_partitioned_model_agrees_with_the_dense_one(text: str) -> None:
    # Not ==: the operands are no integers here, and the devices add the products in another order.
    assert difference(result(emulated(text)), result(dense_linears(CONFIG))) < 1e-12


def test_sums_of_rounded_operands_are_exact() -> None:
    seen: list[Array] = []

    class Watched(Rounded):
        def forward(self, I_MN: Array, W_NK: Array) -> Array:
            seen.append(super().forward(I_MN, W_NK) * self.scale**2)
            return super().forward(I_MN, W_NK)

        def backward(self, dO_MK: Array) -> tuple[Array, Array]:
            seen.extend(gradient * self.scale**2 for gradient in super().backward(dO_MK))
            return super().backward(dO_MK)

    result({name: Watched(operator) for name, operator in dense_linears(CONFIG).items()})
    assert len(seen) == 3 * len(CONFIG.linear_shapes)
    for sums in seen:
        assert np.array_equal(sums, np.rint(sums))
        assert 0 < np.abs(sums).max() < 2.0**50


@dataclass
class WithoutOneRow:
    """A linear operator whose weight gradient misses the last row of the batch."""

    inner: LinearOperator

    def forward(self, I_MN: Array, W_NK: Array) -> Array:
        """Give O_MK."""
        self.kept = I_MN[:-1], W_NK
        return self.inner.forward(I_MN, W_NK)

    def backward(self, dO_MK: Array) -> tuple[Array, Array]:
        """Give dI_MN and a wrong dW_NK."""
        return self.inner.backward(dO_MK)[0], self.kept[0].T @ dO_MK[:-1]


@pytest.mark.parametrize("name", CONFIG.linear_shapes)
def test_one_wrong_linear_operator_is_seen(name: str) -> None:
    linears = dict(dense_linears(CONFIG))
    linears[name] = WithoutOneRow(linears[name])
    assert difference(result(linears), result(dense_linears(CONFIG))) > 1e-3


def test_a_partitioned_model_trains_as_the_dense_one() -> None:
    curves = []
    for linears in (emulated("P2x2"), dense_linears(CONFIG)):
        batches = windows(bytes(range(CONFIG.vocabulary)), BATCH, CONFIG.context)
        model = Transformer.initial(CONFIG, linears=linears)
        curves.append(train(model, AdamW(0.01), itertools.islice(batches, 4)))
    assert len(curves[0]) == 4
    assert curves[0] == pytest.approx(curves[1], rel=1e-12)


def test_a_float32_model_stays_there_on_emulated_devices() -> None:
    model = Transformer.initial(CONFIG, dtype=np.float32, linears=emulated("P2x2"))
    tokens: Tokens = np.zeros((BATCH, CONFIG.context), dtype=np.int64)
    _, gradients = model.loss_and_gradients(tokens, tokens)
    assert {gradient.dtype for gradient in gradients.values()} == {np.dtype(np.float32)}


def test_a_sequence_that_does_not_divide_a_linear_operator_is_refused() -> None:
    with pytest.raises(ShapeError) as error:
        emulated_linears(CONFIG, parse_sequence("K5"), BATCH)
    expected = (
        "blocks.0.qkv with sequence K5: dim K: expected a positive multiple of its 5 slices, "
        "got 36: pad K with zeros to 40"
    )
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "B2",
            "tokens: expected 2 texts of 6 tokens, got 15 tokens in all: give emulated_linears "
            "the batch, and whole contexts to the model",
        ),
        ("M2", "I: expected shape (12, 12) (M, N), got (15, 12)"),
    ],
)
def test_tokens_of_another_batch_are_refused(text: str, message: str) -> None:
    model = Transformer.initial(CONFIG, linears=emulated(text))
    with pytest.raises(ShapeError) as error:
        model.logits(np.zeros((3, 5), dtype=np.int64))
    assert str(error.value) == message
