"""Every operator of the transformer, forward and backward, against differences and against torch.

Legend: B batch, T positions, H hidden, A heads, D elements of one head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from layer_cases import CASES, THETA, TOKENS_BT, A, B, Case, D, T, V
from model_cases import difference

from primepar.reference.oracle import attention as layers_attention
from primepar.reference.oracle import layers
from primepar.reference.oracle.layers import Array

every_operator = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def drawn(case: Case, seed: int = 0) -> tuple[list[Array], Array]:
    """Return arguments for the forward, and a gradient of what it gives."""
    generator = np.random.default_rng(seed)
    arguments: list[Array] = [generator.normal(size=shape) for shape in case.shapes]
    return arguments, generator.normal(size=np.shape(case.forward(*arguments)))


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
    def exchanged(q: Array, k: Array, v: Array, do: Array) -> tuple[Array, ...]:
        dq, dk, dv = layers_attention.attention_backward(q, k, v, do)
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
    whole = layers_attention.merge_heads(
        layers_attention.attention(*layers_attention.split_heads(qkv_BTC, A))
    )
    first = layers_attention.attention(*layers_attention.split_heads(qkv_BTC[..., : 3 * D], 1))
    assert np.array_equal(layers_attention.merge_heads(first), whole[..., :D])


def test_alibi_slopes_are_the_published_ones() -> None:
    slopes = layers_attention.alibi_slopes(8)
    assert slopes.tolist() == [2.0**-n for n in range(1, 9)]
    more = layers_attention.alibi_slopes(12)
    assert more.tolist() == pytest.approx([*slopes, *(2.0 ** -(n + 0.5) for n in range(4))])


def test_a_rotated_score_depends_on_the_distance_alone() -> None:
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 8)).repeat(6, axis=3)
    score = layers_attention.rotary(q, THETA) @ layers_attention.rotary(k, THETA).swapaxes(-1, -2)
    for distance in range(6):
        along = np.diagonal(score[0, 0], -distance)
        assert along == pytest.approx(along[0], rel=1e-12)


def test_a_position_sees_nothing_after_it() -> None:
    (q, k, v), _ = drawn(CASES["attention"])
    before = layers_attention.attention(q, k, v)
    k[:, :, 2:], v[:, :, 2:] = 7.0, -7.0
    after = layers_attention.attention(q, k, v)
    assert np.array_equal(before[:, :, :2], after[:, :, :2])
    assert not np.array_equal(before[:, :, 2:], after[:, :, 2:])


def test_equal_logits_cost_the_logarithm_of_the_vocabulary() -> None:
    assert layers.cross_entropy(np.zeros((B, T, V)), TOKENS_BT) == pytest.approx(np.log(V))


def test_large_logits_do_not_overflow() -> None:
    logits_BTV = np.where(np.arange(V) == TOKENS_BT[..., None], 1e4, -1e4)
    assert layers.cross_entropy(logits_BTV, TOKENS_BT) == 0.0
    assert not layers.cross_entropy_backward(logits_BTV, TOKENS_BT).any()
