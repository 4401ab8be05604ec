"""Orders of pipeline schedules: as published, complete, and refused for sizes that do not fit."""

from __future__ import annotations

from itertools import product

import pytest
from pipeline_cases import SCHEDULES

from primepar.errors import MethodError
from primepar.partition.pipeline.actions import (
    CLOSED_FORMS,
    KINDS,
    Action,
    ScheduleName,
    actions,
    chunks_of,
    model_chunk_of,
    stage_of,
)
from primepar.partition.pipeline.dependencies import PipelineOrders
from primepar.partition.pipeline.formulas import peak_stashes


def text(schedule: ScheduleName, stages: int, micro_batches: int, *, gradients: bool) -> list[str]:
    """The orders as text, `F0 B0 W0`; chunk 1 in lower case."""
    return [
        " ".join(
            (action.kind.lower() if action.chunk else action.kind) + str(action.micro_batch)
            for action in order
            if gradients or action.kind != "W"
        )
        for order in actions(schedule, stages, micro_batches)
    ]


def test_the_orders_are_those_of_the_figures_of_the_papers() -> None:
    """GPipe figure 2c; Narayanan et al. figure 4; Qi et al. figures 3 and 6, with fewer stages."""
    assert text("gpipe", 2, 3, gradients=False) == ["F0 F1 F2 B2 B1 B0"] * 2
    assert text("1f1b", 4, 5, gradients=False) == [
        "F0 F1 F2 F3 B0 F4 B1 B2 B3 B4",
        "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4",
    ]
    assert text("interleaved-1f1b", 2, 4, gradients=False) == [
        "F0 F1 f0 f1 F2 b0 F3 b1 f2 B0 f3 B1 b2 b3 B2 B3",
        "F0 F1 f0 b0 f1 b1 F2 B0 F3 B1 f2 b2 f3 b3 B2 B3",
    ]
    assert text("zb-h1", 3, 4, gradients=True) == [
        "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3",
        "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3",
        "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3",
    ]
    assert text("zbv", 2, 3, gradients=True) == [
        "F0 F1 F2 f0 b0 w0 f1 b1 w1 B0 W0 f2 b2 w2 B1 W1 B2 W2",
        "F0 f0 F1 f1 b0 w0 F2 B0 W0 f2 b1 w1 B1 b2 B2 W1 w2 W2",
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_action_occurs_once_and_no_stage_waits_without_end(schedule: ScheduleName) -> None:
    for stages, micro_batches in product(range(1, 7), (1, 2, 3, 5, 6, 8, 12)):
        if schedule == "interleaved-1f1b" and micro_batches % stages:
            continue
        for chunks in (2, 3) if schedule == "interleaved-1f1b" else (chunks_of(schedule),):
            pipeline = PipelineOrders.of(schedule, stages, micro_batches, chunks)
            every = sorted(
                Action(kind, micro_batch, chunk)
                for kind, micro_batch, chunk in product(KINDS, range(micro_batches), range(chunks))
            )
            assert [sorted(order) for order in pipeline.orders] == [every] * stages
            assert len(pipeline.known) == len(every) * stages
            for stage, order in enumerate(pipeline.orders):
                kept = peak_stashes(schedule, stage, stages, micro_batches, chunks)
                assert most_kept(order) == kept, (stages, micro_batches, chunks, stage)


def most_kept(order: tuple[Action, ...]) -> int:
    """The most actions F without their W."""
    kept = [0]
    for action in order:
        kept.append(kept[-1] + (action.kind == "F") - (action.kind == "W"))
    return max(kept)


@pytest.mark.parametrize("schedule", sorted(CLOSED_FORMS))
def test_what_is_proved_for_all_sizes_is_the_order_that_runs(schedule: ScheduleName) -> None:
    """Up to 16 stages; every number of micro-batches up to 64 for the smallest and largest."""
    place = CLOSED_FORMS[schedule].place
    for stages in range(1, 17):
        counts = range(1, 65) if stages in (1, 16) else (1, 2, stages, stages + 3, 64)
        for micro_batches in counts:
            for stage, order in enumerate(actions(schedule, stages, micro_batches)):
                places = [
                    place(action.kind, stage, action.micro_batch, stages, micro_batches)
                    for action in order
                ]
                assert places == list(range(3 * micro_batches))


def test_chunks_go_round_the_stages_or_down_and_up() -> None:
    assert [stage_of("interleaved-1f1b", 3, 2, chunk) for chunk in range(6)] == [
        (0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1),
    ]  # fmt: skip
    assert [stage_of("zbv", 3, None, chunk) for chunk in range(6)] == [
        (0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1),
    ]  # fmt: skip
    assert [stage_of("1f1b", 3, 1, chunk) for chunk in range(3)] == [(0, 0), (1, 0), (2, 0)]
    for schedule in SCHEDULES:
        for chunk in range(4 * chunks_of(schedule)):
            place = stage_of(schedule, 4, None, chunk)
            assert model_chunk_of(schedule, 4, *place) == chunk


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("2f2b", 2, 4),
            "expected a pipeline schedule out of gpipe, 1f1b, interleaved-1f1b, zb-h1, zbv, got "
            "'2f2b'",
        ),
        (
            ("interleaved-1f1b", 4, 6),
            "interleaved-1f1b: expected micro_batches that are a multiple of stages=4, got 6: "
            "write micro_batches=8",
        ),
        (
            ("interleaved-1f1b", 4, 8, 1),
            "interleaved-1f1b: expected at least 2 chunks, got 1: write 1f1b, or chunks=2",
        ),
        (("zbv", 4, 8, 3), "zbv: expected 2 chunks, got 3: write chunks=2"),
        (("1f1b", 4, 8, 2), "1f1b: expected 1 chunks, got 2: write chunks=1"),
        (("gpipe", 0, 8), "gpipe: expected stages of at least 1, got 0"),
        (("gpipe", 2, 0), "gpipe: expected micro_batches of at least 1, got 0"),
    ],
)
def test_sizes_that_a_schedule_does_not_have_are_refused(
    arguments: tuple[ScheduleName, int, int], message: str
) -> None:
    with pytest.raises(MethodError) as caught:
        actions(*arguments)
    assert str(caught.value) == message


def test_a_model_chunk_beyond_the_last_is_refused() -> None:
    with pytest.raises(MethodError) as caught:
        stage_of("zbv", 3, None, 6)
    assert str(caught.value) == "zbv: expected a model chunk below 6, got 6"
