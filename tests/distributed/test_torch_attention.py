"""Attention in torch against dense NumPy functions: whole sequences, and parts of them."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from kernel_cases import Step, assert_close, drawn
from partitioned_cases import DRAW
from profiles import few
from step_cases import SMALL

from primepar.distributed.kernels import attention
from primepar.models import ModelConfig
from primepar.operators import StepInputs, StepSettings
from primepar.reference.oracle import attention as layers_attention

BATCH, POSITIONS = 2, 4
TYPES = (torch.float64, torch.bfloat16)
DRAWN = StepInputs(DRAW)


def given(dtype: torch.dtype, *shape: int, seed: int = 0) -> tuple[torch.Tensor, Any]:
    """A block of the type, and the same numbers for the oracle."""
    block = drawn(*shape, seed=seed).to(dtype)
    return block, block.double().numpy()


ATTENTIONS = {
    **{family: SMALL[family] for family in ("gpt2", "llama", "bloom")},
    "turned groups": ModelConfig.of(
        "llama", layers=1, hidden=16, heads=8, kv_heads=2, head_dim=6, context=512, vocabulary=21,
        attention_dropout=0.3,
    ),
    "groups by distance": ModelConfig.of(
        "gpt", layers=1, hidden=16, heads=8, kv_heads=4, head_dim=4, context=512, vocabulary=21,
        positions="alibi", attention_dropout=0.3,
    ),
}  # fmt: skip


@few
@pytest.mark.parametrize(
    ("name", "parts", "dtype", "drops"),
    list(product(ATTENTIONS, (1, 2, 4), TYPES, (False, True))),
    ids=str,
)
def test_attention_of_whole_sequences_and_of_parts(
    name: str, parts: int, dtype: torch.dtype, drops: bool
) -> None:
    _check_attention(ATTENTIONS[name], (2, 4), parts, 2, dtype, drops)


@few
@pytest.mark.parametrize("drops", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", ["turned groups", "groups by distance"])
def test_attention_of_sequences_longer_than_a_chunk(name: str, parts: int, drops: bool) -> None:
    _check_attention(ATTENTIONS[name], (2, 300), parts, 1, torch.float64, drops)


def test_a_receive_into_other_memory_of_the_arena_is_no_change_of_an_operand(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blocks are parts of one arena, and a posted receive ends whenever it does."""
    plain = attention._attend
    model = SMALL["gpt2"]
    arena = torch.stack([drawn(8, model.heads * 3 * model.head_dim)] * 2).bfloat16()

    def attend_while_received(*operands: torch.Tensor) -> torch.Tensor:
        answer = plain(*operands)
        arena[1].fill_(1)
        return answer

    step = Step(StepSettings(model, 2, 4), torch.bfloat16, {"M": 2})
    dy = drawn(8, model.heads * model.head_dim, seed=1).bfloat16()
    given = step, "blocks.0.attention", arena[0], dy, 1
    expected = _whole(*given)[1]
    monkeypatch.setattr(attention, "_attend", attend_while_received)
    assert _whole(*given)[1].equal(expected)


def _check_attention(
    model: ModelConfig,
    sizes: tuple[int, int],
    parts: int,
    slices: int,
    dtype: torch.dtype,
    drops: bool,
) -> None:
    """All phases of `sizes` sequences and positions; each rank has a part of one, or a whole."""
    (batch, positions), operator = sizes, "blocks.0.attention"
    rows, columns = batch * positions, model.kv_heads * model.group_columns
    settings = StepSettings(model, batch, positions)
    grid = {"M": batch * parts, "K": slices}
    step = Step(settings, dtype, grid, DRAWN if drops else None)
    (x, x_), (dy, dy_) = (
        given(dtype, rows, columns),
        given(dtype, rows, model.heads * model.head_dim, seed=1),
    )
    y, dx = (_parted if parts > 1 else _whole)(step, operator, x, dy, parts)
    part, draw = layers_attention.AttentionPart.every(model), DRAW if drops else None
    x_BTC, dy_BTC = (x.reshape(batch, positions, -1) for x in (x_, dy_))
    expected = layers_attention.attend(part, x_BTC, draw, operator)
    assert_close(y, expected.reshape(dy_.shape))
    expected = layers_attention.attend_backward(part, x_BTC, dy_BTC, draw, operator)
    assert_close(dx, expected.reshape(x_.shape))


def _whole(
    step: Step, name: str, x: torch.Tensor, dy: torch.Tensor, parts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    shapes = tuple(dy.shape), tuple(x.shape)
    y = step.run("attention.forward", "x[M,K] -> y[M,K]", x, shape=shapes[0], name=name)
    reads = "x[M,K] d[M,K]"
    dx = step.run("attention.backward", f"{reads} -> dx[M,K]", x, dy, shape=shapes[1], name=name)
    return y, dx


def _parted(
    step: Step, name: str, x: torch.Tensor, dy: torch.Tensor, parts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    assert step.settings is not None
    model, whole = step.settings.model, f"[M/{parts},K]"
    shape = len(x), 2 * model.kv_heads * model.head_dim
    kv = step.run("attention.keys", "x[M,K] -> kv[M,K]", x, shape=shape, name=name)
    y = step.run("attention.forward", f"x[M,K] kv{whole} -> y[M,K]", x, kv,
                 shape=tuple(dy.shape), name=name)  # fmt: skip
    dkv = step.run("attention.backward.keys", f"x[M,K] kv{whole} d[M,K] -> dkv{whole}", x, kv, dy,
                   shape=shape, name=name)  # fmt: skip
    dx = step.run("attention.backward", f"x[M,K] kv{whole} d[M,K] dkv[M,K] -> dx[M,K]", x, kv, dy,
                  dkv, shape=tuple(x.shape), name=name)  # fmt: skip
    return y, dx
