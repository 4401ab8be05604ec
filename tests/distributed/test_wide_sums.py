"""Sums of linear operators under half precision: float32 until they are complete, as predicted."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from math import ceil
from typing import Any

import pytest
from distributed_ranks import on_ranks
from profiles import IS_LONG
from wide_sum_cases import Errors, all_partitioned, dense_errors, stepped

from primepar.distributed.runtime.shapes import Shapes
from primepar.models import ModelConfig
from primepar.operators import StepOptions, lower_step
from primepar.plan.cluster import load_cluster
from primepar.plan.presets import preset_plan
from primepar.plan.simulator.account import accounting
from primepar.plan.simulator.step import simulate_step
from primepar.schedule.ledger import sends
from primepar.schedule.program import Collective, Compute, Program, Wait
from primepar.verify import verify_program

RANKS, BATCH, POSITIONS = 4, 4, 4
SIZES = {"layers": 1, "hidden": 16, "heads": 4, "context": POSITIONS}
MODELS = {family: ModelConfig.of(family, **SIZES, vocabulary=32) for family in ("gpt2", "llama")}
PRESETS: tuple[str, ...] = ("megatron", "summa", "primepar")
PRESETS += ("data", "megatron-sp", "stationary") if IS_LONG else ()
ALL_REDUCED = {"N4": "O", "K4": "dI"}
"""Sequence -> the activation that one all-reduce adds."""
NARROW, WIDE = 2, 4
"""Bytes of an element in bfloat16 and in float32."""


@cache
def program_of(family: str, preset: str, wide: bool = True) -> Program:
    plan = preset_plan(preset, MODELS[family], RANKS)
    return lower_step(plan, BATCH, POSITIONS, options=StepOptions(wide_sums=wide, masters=wide))


def sent_bytes(program: Program) -> list[Fraction]:
    """Bytes that every rank sends by a program, with wide blocks in float32."""
    shapes, sent = Shapes(program), [Fraction(0)] * program.ranks
    item = {True: WIDE, False: NARROW}
    for rank, nodes in enumerate(program.programs):
        for node in nodes:
            for block, times in sends(node, rank):
                sent[rank] += times * shapes.elements(block) * item[shapes.wide(block)]
    return sent


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("preset", PRESETS)
def test_the_bytes_in_half_precision_are_predicted(preset: str, family: str) -> None:
    program = program_of(family, preset)
    plan = preset_plan(preset, MODELS[family], RANKS)
    predicted = accounting(plan, BATCH, POSITIONS, "bfloat16").sent
    assert list(predicted) == [ceil(sent) for sent in sent_bytes(program)]


@pytest.mark.parametrize("preset", PRESETS)
def test_a_simulated_step_sends_the_predicted_bytes(preset: str) -> None:
    plan = preset_plan(preset, MODELS["gpt2"], RANKS)
    run = simulate_step(plan, BATCH, POSITIONS, load_cluster("h200-8"), "bfloat16", fractions=True)
    sent = accounting(plan, BATCH, POSITIONS, "bfloat16").sent
    assert [ceil(number) for number in run.sent] == list(sent)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_step_with_wide_sums_is_proved(preset: str) -> None:
    assert verify_program(program_of("gpt2", preset), preset).verdict == "proved"


@pytest.mark.parametrize("preset", PRESETS)
def test_wide_sums_are_hidden_behind_products_as_narrow_ones_are(preset: str) -> None:
    """A sum is rounded by a cut in place after its wait, which moves with the wait."""
    narrow, wide = (hidden(program_of("gpt2", preset, wide)) for wide in (False, True))
    assert wide >= narrow


def hidden(program: Program) -> int:
    """Collectives of rank 0 between whose start and whose wait it computes."""
    computes: dict[str, int] = {}
    count = 0
    for node in program.programs[0]:
        if isinstance(node, Collective) and node.request is not None:
            computes[node.request] = 0
        elif isinstance(node, Compute):
            computes = {request: number + 1 for request, number in computes.items()}
        elif isinstance(node, Wait):
            count += computes.pop(node.request, 0) > 0
    return count


SEQUENCES: tuple[str, ...] = ("P2x2", "Ws2x2", "N4", "K4")
SEQUENCES += ("Os2x2", "Is2x2", "S2x2", "M4") if IS_LONG else ()
ROUNDED_ONCE = 1.01
"""Of the error of one device: only the order of additions differs."""


@cache
def everyone() -> dict[tuple[str, bool], Any]:
    """What rank 0 of four finds."""
    found: dict[tuple[str, bool], Any] = on_ranks(RANKS, all_partitioned, SEQUENCES)[0]
    return found


def of_dense(sequence: str, wide: bool) -> Errors:
    """Errors of a partitioned layer as multiples of those of one device."""
    found = everyone()[sequence, wide]["errors"]
    return {name: found[name] / error for name, error in dense_errors().items()}


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_a_partitioned_product_is_as_exact_as_a_dense_one(sequence: str) -> None:
    """Except where one collective alone adds activations: it has the model's dtype."""
    errors = of_dense(sequence, wide=True)
    reduced = ALL_REDUCED.get(sequence)
    assert max(error for name, error in errors.items() if name != reduced) < ROUNDED_ONCE
    assert reduced is None or errors[reduced] == of_dense(sequence, wide=False)[reduced]


@pytest.mark.parametrize("sequence", SEQUENCES)
def test_sums_in_half_precision_are_not(sequence: str) -> None:
    assert max(of_dense(sequence, wide=False).values()) > 1.2


def test_only_the_sums_take_more_bytes() -> None:
    """Of the 8 quarter blocks that a rank sends under P2x2, one is of a sum: of dW."""
    narrow, wide = (everyone()["P2x2", wide]["sent"]["linear"] for wide in (False, True))
    quarter = 128 * 128
    assert (narrow, wide) == (8 * NARROW * quarter, 7 * NARROW * quarter + WIDE * quarter)


def test_a_training_step_sends_the_bytes_that_are_predicted() -> None:
    plans = tuple(preset_plan(preset, MODELS["gpt2"], RANKS) for preset in PRESETS)
    by_rank = on_ranks(RANKS, stepped, plans, BATCH, POSITIONS)
    for plan, *of_plan in zip(plans, *by_rank, strict=True):
        options = StepOptions(wide_sums=True)
        predicted = sent_bytes(lower_step(plan, BATCH, POSITIONS, options=options))
        assert predicted == [sent for _, sent in of_plan]
    first, *others = (loss for loss, _ in by_rank[0])
    assert others == pytest.approx([first] * len(others), rel=0.01)
