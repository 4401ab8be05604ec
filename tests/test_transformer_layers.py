"""Every operator of the transformer, forward and backward, against differences and against torch.

Legend: B batch, T positions, H hidden, A heads, D elements of one head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from primepar.reference import dense, layers
from primepar.reference.layers import Array

B, T, A, D, V = 2, 4, 3, 2, 5
H = A * D
TOKENS_BT = np.array([[0, 4, 4, 1], [2, 0, 3, 4]])


@dataclass(frozen=True)
class Case:
    """One operator: its forward and its backward over arrays of `shapes`, and torch's forward."""

    forward: Callable[..., Any]
    backward: Callable[..., tuple[Array, ...]]
    shapes: tuple[tuple[int, ...], ...]
    torch: Callable[..., Any]


def torch_heads(torch: Any, qkv_BTC: Any) -> Any:
    """Columns of head 0 first; within a head query, key, value."""
    starts = [range(part * D, 3 * H, 3 * D) for part in range(3)]
    return torch.stack(
        [torch.stack([qkv_BTC[..., i : i + D] for i in part], dim=1) for part in starts]
    )


def torch_attention(torch: Any, *qkv_BATD: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(*qkv_BATD, is_causal=True)


def torch_cross_entropy(torch: Any, logits_BTV: Any) -> Any:
    targets = torch.tensor(TOKENS_BT).flatten()
    return torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), targets)


CASES = {
    "embedding": Case(
        lambda token, position: layers.embedding(TOKENS_BT, token, position),
        lambda token, position, d: layers.embedding_backward(TOKENS_BT, token, position, d),
        ((V, H), (T + 1, H)),
        lambda torch, token, position: token[TOKENS_BT] + position[:T],
    ),
    "layer_norm": Case(
        layers.layer_norm,
        lambda x, weight, bias, d: layers.layer_norm_backward(x, weight, d),
        ((B, T, H), (H,), (H,)),
        lambda torch, x, w, b: torch.nn.functional.layer_norm(x, (H,), w, b, 1e-5),
    ),
    "linear": Case(
        dense.linear,
        dense.linear_backward,
        ((T, H), (H, V)),
        lambda torch, x, weight: torch.nn.functional.linear(x, weight.T),
    ),
    "split_heads": Case(
        lambda qkv: np.stack(layers.split_heads(qkv, A)),
        lambda qkv, d: (layers.split_heads_backward(*d),),
        ((B, T, 3 * H),),
        torch_heads,
    ),
    "attention": Case(
        layers.attention, layers.attention_backward, ((B, A, T, D),) * 3, torch_attention
    ),
    "merge_heads": Case(
        layers.merge_heads,
        lambda o, d: (layers.merge_heads_backward(A, d),),
        ((B, A, T, D),),
        lambda torch, o: torch.cat(o.unbind(1), dim=-1),
    ),
    "gelu": Case(
        layers.gelu,
        lambda x, d: (layers.gelu_backward(x, d),),
        ((B, T, H),),
        lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
    ),
    "cross_entropy": Case(
        lambda logits: layers.cross_entropy(logits, TOKENS_BT),
        lambda logits, d: (d * layers.cross_entropy_backward(logits, TOKENS_BT),),
        ((B, T, V),),
        torch_cross_entropy,
    ),
}
every_operator = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def drawn(case: Case, seed: int = 0) -> tuple[list[Array], Array]:
    """Return arguments for the forward, and a gradient of what it gives."""
    generator = np.random.default_rng(seed)
    arguments: list[Array] = [generator.normal(size=shape) for shape in case.shapes]
    return arguments, generator.normal(size=np.shape(case.forward(*arguments)))


def difference(got: Array, expected: Array) -> float:
    """Return the largest difference by the largest expected element."""
    assert got.shape == expected.shape
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def central_differences(
    forward: Callable[..., Any], arguments: list[Array], dy: Array, place: int
) -> Array:
    """Return the gradient of sum(dy * forward(arguments)) by the argument at `place`."""
    step = 1e-5
    gradient = np.zeros_like(arguments[place])
    for index in np.ndindex(gradient.shape):
        sums = []
        for sign in (1, -1):
            moved = [argument.copy() for argument in arguments]
            moved[place][index] += sign * step
            sums.append(np.sum(dy * forward(*moved)))
        gradient[index] = (sums[0] - sums[1]) / (2 * step)
    return gradient


def worst_difference(case: Case, backward: Callable[..., tuple[Array, ...]]) -> float:
    """Return how far `backward` is from central differences, at the worst argument."""
    arguments, dy = drawn(case)
    gradients = backward(*arguments, dy)
    assert len(gradients) == len(arguments)
    return max(
        difference(gradient, central_differences(case.forward, arguments, dy, place))
        for place, gradient in enumerate(gradients)
    )


@every_operator
def test_a_backward_agrees_with_central_differences(case: Case) -> None:
    assert worst_difference(case, case.backward) < 1e-8


def test_a_backward_with_two_gradients_exchanged_is_seen() -> None:
    def exchanged(*arguments: Array) -> tuple[Array, ...]:
        dq, dk, dv = layers.attention_backward(*arguments)
        return dk, dq, dv

    assert worst_difference(CASES["attention"], exchanged) > 0.1


@every_operator
def test_an_operator_agrees_with_torch_forward_and_backward(case: Case) -> None:
    torch = pytest.importorskip("torch")
    arguments, dy = drawn(case)
    leaves = [torch.tensor(argument, requires_grad=True) for argument in arguments]
    y = case.torch(torch, *leaves)
    y.backward(torch.tensor(dy))
    assert difference(np.asarray(case.forward(*arguments)), y.detach().numpy()) < 1e-12
    for got, leaf in zip(case.backward(*arguments, dy), leaves, strict=True):
        assert difference(got, leaf.grad.numpy()) < 1e-12


@every_operator
def test_an_operator_stays_in_float32(case: Case) -> None:
    arguments, dy = drawn(case)
    small = [argument.astype(np.float32) for argument in arguments]
    y = case.forward(*small)
    assert isinstance(y, float) or y.dtype == np.float32
    gradients = case.backward(*small, np.asarray(dy, dtype=np.float32))
    assert {gradient.dtype for gradient in gradients} == {np.dtype(np.float32)}


@every_operator
def test_an_operator_leaves_its_arguments_as_they_are(case: Case) -> None:
    arguments, dy = drawn(case)
    kept = [array.copy() for array in (*arguments, dy)]
    case.forward(*arguments)
    case.backward(*arguments, dy)
    for array, before in zip((*arguments, dy), kept, strict=True):
        assert np.array_equal(array, before)


def test_a_slice_of_qkv_columns_is_a_set_of_whole_heads() -> None:
    (qkv_BTC,), _ = drawn(CASES["split_heads"])
    whole = layers.merge_heads(layers.attention(*layers.split_heads(qkv_BTC, A)))
    first = layers.attention(*layers.split_heads(qkv_BTC[..., : 3 * D], 1))
    assert np.array_equal(layers.merge_heads(first), whole[..., :D])


def test_a_position_sees_nothing_after_it() -> None:
    (q, k, v), _ = drawn(CASES["attention"])
    before = layers.attention(q, k, v)
    k[:, :, 2:], v[:, :, 2:] = 7.0, -7.0
    after = layers.attention(q, k, v)
    assert np.array_equal(before[:, :, :2], after[:, :, :2])
    assert not np.array_equal(before[:, :, 2:], after[:, :, 2:])


def test_equal_logits_cost_the_logarithm_of_the_vocabulary() -> None:
    assert layers.cross_entropy(np.zeros((B, T, V)), TOKENS_BT) == pytest.approx(np.log(V))


def test_large_logits_do_not_overflow() -> None:
    logits_BTV = np.where(np.arange(V) == TOKENS_BT[..., None], 1e4, -1e4)
    assert layers.cross_entropy(logits_BTV, TOKENS_BT) == 0.0
    assert not layers.cross_entropy_backward(logits_BTV, TOKENS_BT).any()
