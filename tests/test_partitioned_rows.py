"""Batches that a plan cuts within sequences: attention on parts of one, all else row by row."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from partitioned_cases import DRAW, SHAPES, difference

from primepar.models import ModelConfig
from primepar.partition import parse_sequence
from primepar.plan import Plan, ready_plan
from primepar.reference.layers import Array
from primepar.reference.layers_attention import Part, attend, attend_backward
from primepar.reference.partitioned_attention import PartitionedAttention
from primepar.reference.partitioned_devices import Blocks, Devices, Groups, spread, whole
from primepar.reference.partitioned_step import Step

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

READY = [
    ("data", 2, 1), ("data", 4, 1), ("data", 4, 2), ("data", 8, 2), ("megatron-sp", 4, 1),
    ("summa", 4, 1), ("primepar", 4, 1), ("stationary", 4, 1), ("tesseract", 8, 1), ("3d", 8, 1),
    ("M2,megatron", 8, 1), ("M2,primepar", 8, 1),
]  # fmt: skip


def with_attention(model: ModelConfig, text: str) -> Plan:
    """Rows in as many slices as there are devices, but for the attention."""
    plan = ready_plan("data", model, parse_sequence(text, linear=False).ranks)
    own = {name: text for name in plan.sequences if name.endswith("attention")}
    return Plan(model=model, ranks=plan.ranks, sequences=plan.sequences | own)


class Alone:
    """One attention on emulated devices and on one, on the same columns and gradients."""

    def __init__(self, family: str, text: str, batch: int) -> None:
        model = SHAPES[family]
        plan = with_attention(model, text)
        operator, rows = plan.operator(NAME), np.zeros(batch * T, dtype=np.int64)
        self.step = Step(plan, Devices(plan.ranks), {}, {}, rows, rows, T, DRAW)
        self.layout = self.step.ends(NAME).output
        generator = np.random.default_rng(2)
        qkv_BTC = generator.normal(size=(batch, T, operator.N))
        do_BTH = generator.normal(size=(batch, T, operator.K))
        self.given = qkv_BTC, do_BTH
        self.expected = (
            attend(Part.every(model), qkv_BTC, DRAW, NAME),
            attend_backward(Part.every(model), qkv_BTC, do_BTH, DRAW, NAME),
        )
        self.attention = PartitionedAttention(self.step, operator)

    def forward(self) -> Array:
        """Output of all devices together."""
        return self._whole(self.attention.forward(self._spread(self.given[0])))

    def backward(self) -> Array:
        """Gradient of the columns, of all devices together."""
        return self._whole(self.attention.backward(self._spread(self.given[1]))[0])

    def _spread(self, x_BTC: Array) -> Blocks:
        return spread(x_BTC.reshape(-1, x_BTC.shape[-1]), self.layout)

    def _whole(self, blocks: Blocks) -> Array:
        found = whole(blocks, self.layout)
        return found.reshape(-1, T, found.shape[-1])


@pytest.mark.parametrize("family", ["gpt2", "llama", "bloom"])
@pytest.mark.parametrize(("text", "batch"), [case[:2] for case in PARTS])
def test_attention_on_parts_of_a_sequence_is_that_of_one_device(
    family: str, text: str, batch: int
) -> None:
    alone = Alone(family, text, batch)
    for got, expected in zip((alone.forward(), alone.backward()), alone.expected, strict=True):
        assert np.abs(got - expected).max() / np.abs(expected).max() < 1e-12


@pytest.mark.parametrize(("text", "batch", "parts", "slices"), PARTS)
def test_attention_sends_the_keys_and_values_of_a_sequence_once_around_the_ring(
    text: str, batch: int, parts: int, slices: int
) -> None:
    alone, model = Alone("llama", text, batch), SHAPES["llama"]
    around = Fraction(parts - 1, parts) * T * 2 * model.kv_heads * model.head_dim / slices
    alone.forward()
    assert alone.step.devices.sent == [around] * alone.layout.ranks
    alone.backward()
    assert alone.step.devices.sent == [2 * around] * alone.layout.ranks


@pytest.mark.parametrize(("text", "batch"), [("M4", 4), ("M2,K2", 2), ("K4", 3), ("R2,M2", 6)])
def test_attention_on_whole_sequences_sends_nothing(text: str, batch: int) -> None:
    alone = Alone("llama", text, batch)
    assert np.array_equal(alone.forward(), alone.expected[0])
    assert np.abs(alone.backward() - alone.expected[1]).max() < 1e-12
    assert alone.step.devices.sent == [0] * alone.layout.ranks


def own_rows_again(self: Devices, blocks: Blocks, lines: Groups) -> Blocks:
    """A gather that forgets the others."""
    return [np.concatenate([block] * len(lines[0])) for block in blocks]


def own_part_alone(self: Devices, blocks: Blocks, groups: Groups, parts: list[int]) -> Blocks:
    """A sum that forgets the others."""
    return [
        np.split(block, len(groups[0]))[part] for block, part in zip(blocks, parts, strict=True)
    ]


def test_keys_that_are_not_gathered_and_gradients_that_are_not_summed_are_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    alone = Alone("gpt2", "M2", 1)
    right = alone.forward()
    with monkeypatch.context() as patched:
        patched.setattr(Devices, "gathered", own_rows_again)
        assert np.abs(alone.forward() - right).max() > 0.1
    alone.forward()
    with monkeypatch.context() as patched:
        patched.setattr(Devices, "summed_in_parts", own_part_alone)
        assert np.abs(alone.backward() - alone.expected[1]).max() > 0.1


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize(("name", "ranks", "batch"), READY)
def test_under_a_ready_plan_a_small_batch_gives_what_one_device_gives(
    family: str, name: str, ranks: int, batch: int
) -> None:
    plan = ready_plan(name, SHAPES[family], ranks)
    assert difference(plan, batch, 4) < 1e-10


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize(("text", "batch"), [("M2,K2", 1), ("P2x2", 1), ("S2x2", 1), ("R2,M2", 1)])
def test_a_plan_may_cut_attention_otherwise_than_its_neighbours(
    family: str, text: str, batch: int
) -> None:
    assert difference(with_attention(SHAPES[family], text), batch, 4) < 1e-10


@pytest.mark.parametrize("family", SHAPES)
@pytest.mark.parametrize(("text", "batch"), [("K2", 3), ("K4", 3), ("K4,R2", 2), ("K8", 6)])
def test_blocks_of_other_operators_may_begin_and_end_amid_a_sequence(
    family: str, text: str, batch: int
) -> None:
    plan = with_attention(SHAPES[family], text)
    assert batch * 4 // plan.ranks % 4 != 0
    assert difference(plan, batch, 4) < 1e-10
