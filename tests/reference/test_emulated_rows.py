"""Batches that a plan cuts within sequences: attention on parts of one, all else row by row."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from operator_cases import Alone, without
from partitioned_cases import DRAW, SHAPES, difference, farthest
from profiles import few

from primepar.errors import IncompleteError, MissingBlockError
from primepar.models import ModelConfig
from primepar.partition import parse_sequence
from primepar.plan import Plan, preset_plan
from primepar.reference.oracle.attention import AttentionPart, attend, attend_backward
from primepar.reference.oracle.layers import Array
from primepar.schedule.program import AllGather, ReduceScatter

NAME = "blocks.0.attention"
T = 8
PARTS = [
    ("M2", 1, 2, 1), ("M4", 1, 4, 1), ("M4", 2, 2, 1), ("M8", 2, 4, 1),
    ("M2,K2", 1, 2, 2), ("K2,M2", 1, 2, 2), ("K4,M2", 1, 2, 4), ("M2,K2,M2", 1, 4, 2),
    ("P2x2", 1, 2, 2), ("S2x2", 1, 2, 2), ("Os2x2", 1, 2, 2), ("T2x2x2", 1, 4, 2),
    ("C2x2x2", 1, 4, 2), ("R2,M2", 1, 2, 1), ("M2,R2", 1, 2, 1), ("M2,P2x2", 2, 2, 2),
    ("Ws2x2", 1, 2, 2), ("Is2x2", 1, 2, 2),
]  # fmt: skip
"""Sequence of the attention, sequences of the batch; parts of a sequence, slices of the columns."""

PRESET_BATCHES = [
    ("data", 2, 1), ("data", 4, 1), ("data", 4, 2), ("data", 8, 2), ("megatron-sp", 4, 1),
    ("summa", 4, 1), ("primepar", 4, 1), ("stationary", 4, 1), ("tesseract", 8, 1), ("3d", 8, 1),
    ("M2,megatron", 8, 1), ("M2,primepar", 8, 1),
]  # fmt: skip


def with_attention(model: ModelConfig, text: str) -> Plan:
    """Rows in as many slices as there are devices, but for the attention."""
    plan = preset_plan("data", model, parse_sequence(text, linear=False).ranks)
    sequences = {name: text for name in plan.sequences if name.endswith("attention")}
    return Plan(model=model, ranks=plan.ranks, sequences=plan.sequences | sequences)


class Attention:
    """One attention on emulated devices and on one, on the same columns and gradients."""

    def __init__(self, family: str, text: str, batch: int) -> None:
        model = SHAPES[family]
        self.alone = Alone(with_attention(model, text), NAME, batch, T)
        operator, generator = self.alone.operator, np.random.default_rng(2)
        qkv_BTC = generator.normal(size=(batch, T, operator.N))
        do_BTH = generator.normal(size=(batch, T, operator.K))
        self.given: dict[str, Array] = {
            "x": qkv_BTC.reshape(-1, operator.N), "dy": do_BTH.reshape(-1, operator.K)
        }  # fmt: skip
        part = AttentionPart.every(model)
        self.y = attend(part, qkv_BTC, DRAW, NAME).reshape(-1, operator.K)
        dx_BTC = attend_backward(part, qkv_BTC, do_BTH, DRAW, NAME)
        self.dx = dx_BTC.reshape(-1, operator.N)

    def sent(self, backward: bool) -> list[Fraction]:
        """Elements that leave every rank."""
        return self.alone.run(self.given, backward).sent


@few
@pytest.mark.parametrize(
    ("family", "text", "batch"),
    [(name, *case[:2]) for case in PARTS for name in ("gpt2", "llama", "bloom")],
)
def test_attention_on_parts_of_a_sequence_is_that_of_one_device(
    family: str, text: str, batch: int
) -> None:
    attention = Attention(family, text, batch)
    y, dx, _ = attention.alone.run(attention.given)
    assert dx is not None
    assert farthest({"y": y, "dx": dx}, {"y": attention.y, "dx": attention.dx}) < 1e-12


@pytest.mark.parametrize(("text", "batch", "parts", "slices"), PARTS)
def test_attention_sends_the_keys_and_values_of_a_sequence_once_around_the_ring(
    text: str, batch: int, parts: int, slices: int
) -> None:
    attention, model = Attention("llama", text, batch), SHAPES["llama"]
    around = Fraction(parts - 1, parts) * T * 2 * model.kv_heads * model.head_dim / slices
    ranks = attention.alone.plan.ranks
    assert attention.sent(backward=False) == [around] * ranks
    assert attention.sent(backward=True) == [2 * around] * ranks


@pytest.mark.parametrize(("text", "batch"), [("M4", 4), ("M2,K2", 2), ("K4", 3), ("R2,M2", 6)])
def test_attention_on_whole_sequences_sends_nothing(text: str, batch: int) -> None:
    attention = Attention("llama", text, batch)
    y, dx, sent = attention.alone.run(attention.given)
    assert np.array_equal(y, attention.y)
    assert dx is not None
    assert np.abs(dx - attention.dx).max() < 1e-12
    assert sent == [0] * attention.alone.plan.ranks


def test_keys_that_are_not_gathered_are_refused_where_they_are_read() -> None:
    attention = Attention("gpt2", "M2", 1)
    with pytest.raises(MissingBlockError, match="programs"):
        attention.alone.run(attention.given, backward=False, change=without(AllGather))


def test_gradients_of_keys_that_are_not_summed_are_refused_where_they_are_read() -> None:
    attention = Attention("gpt2", "M2", 1)
    with pytest.raises(IncompleteError, match=r"attention\.backward"):
        attention.alone.run(attention.given, change=without(ReduceScatter))


@few
@pytest.mark.parametrize(("family", "case"), list(product(SHAPES, PRESET_BATCHES)))
def test_under_a_preset_a_small_batch_gives_what_one_device_gives(
    family: str, case: tuple[str, int, int]
) -> None:
    name, ranks, batch = case
    plan = preset_plan(name, SHAPES[family], ranks)
    assert difference(plan, batch, 4) < 1e-10


@few
@pytest.mark.parametrize(
    ("family", "text"), list(product(SHAPES, ["M2,K2", "P2x2", "S2x2", "R2,M2"]))
)
def test_a_plan_may_cut_attention_otherwise_than_its_neighbours(family: str, text: str) -> None:
    assert difference(with_attention(SHAPES[family], text), 1, 4) < 1e-10


MID_SEQUENCE = [("K2", 3), ("K4", 3), ("K4,R2", 2), ("K8", 6)]


@few
@pytest.mark.parametrize(
    ("family", "text", "batch"),
    [(family, *case) for case in MID_SEQUENCE for family in SHAPES],
)
def test_blocks_of_other_operators_may_begin_and_end_amid_a_sequence(
    family: str, text: str, batch: int
) -> None:
    plan = with_attention(SHAPES[family], text)
    assert batch * 4 // plan.ranks % 4 != 0
    assert difference(plan, batch, 4) < 1e-10
