"""Programs of pipelines: exact on emulated devices, and as expensive as stated."""

from __future__ import annotations

from fractions import Fraction

import pytest
from command import run
from pipeline_cases import SCHEDULES, generated, small
from profiles import few

from benchmarks.pipelines import measure_pipeline
from primepar.errors import MethodError
from primepar.partition.pipeline.actions import ScheduleName
from primepar.partition.pipeline.dependencies import PipelineOrders
from primepar.partition.pipeline.formulas import ActionTimes, bubble, bubble_share
from primepar.reference.check import check_program
from primepar.verify.program import verify_program


@few
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_200_generated_sizes_are_exact_on_integers(first: int) -> None:
    for seed in range(first, first + 10):
        program = generated(seed)
        report = check_program(program)
        assert report.equal, (seed, report.message)
        assert set(report.outputs) >= {"dx.0", "dw.0", "x.1"}
        if seed % 4 == 0:
            assert verify_program(program).verdict == "proved", seed


@few
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_emulator_measures_the_formulas(schedule: ScheduleName) -> None:
    sizes = [(stages, 2 * stages) for stages in (1, 2, 3, 5)]
    if schedule != "interleaved-1f1b":
        sizes += [(2, 1), (5, 1), (5, 3), (5, 4), (5, 7), (4, 6)]
    for stages, micro_batches in sizes:
        row = measure_pipeline(PipelineOrders.of(schedule, stages, micro_batches))
        assert row.equal, row


@pytest.mark.parametrize("schedule", [schedule for schedule in SCHEDULES if schedule != "zbv"])
@pytest.mark.parametrize("times", [ActionTimes(1, 2, 1), ActionTimes(3, 5, 3)])
def test_the_bubble_of_unequal_times(schedule: ScheduleName, times: ActionTimes) -> None:
    row = measure_pipeline(PipelineOrders.of(schedule, 4, 8), times)
    assert row.equal, row


def test_formulas_state_the_times_that_they_are_for() -> None:
    with pytest.raises(MethodError) as caught:
        bubble("zb-h1", 4, 8, ActionTimes(1, 2, 2))
    assert str(caught.value) == "zb-h1: expected a W no longer than F, got F=1, B=2, W=2"
    with pytest.raises(MethodError) as caught:
        bubble("zbv", 4, 8, ActionTimes(1, 2, 1))
    assert str(caught.value) == "zbv: expected equal times of F, B and W, got F=1, B=2, W=1"


def test_shares_are_those_of_the_papers() -> None:
    """Over the work: (p - 1) / M for 1F1B, a v-th of that interleaved, and a third for ZB-H1."""
    assert bubble_share("1f1b", 4, 8) == bubble_share("gpipe", 4, 8) == Fraction(9, 33)
    assert bubble_share("interleaved-1f1b", 4, 8, 2) == Fraction(9, 48 + 9)
    assert bubble_share("zb-h1", 4, 8) == Fraction(3, 27)
    assert bubble_share("zbv", 4, 8) == 0


def test_what_is_shown_of_a_pipeline() -> None:
    done = run("show", "1f1b:stages=2,micro_batches=3")
    assert done.out.startswith(
        "1f1b:stages=2,micro_batches=3,rows=2,width=4\n"
        "  bubble  3 units where F, B and W take one each: 1/4 of the time\n"
        "  stashes  at most 2, 1 on the stages\n"
        "  sent  48 elements by all stages together\n"
    )


def test_the_facts_of_what_is_sent_are_counted() -> None:
    for schedule in SCHEDULES:
        report = check_program(small(schedule, 2, 4))
        messages = len(PipelineOrders.of(schedule, 2, 4).messages)
        assert sum(report.sent) == messages * 1 * 2
