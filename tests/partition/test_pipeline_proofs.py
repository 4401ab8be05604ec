"""Proofs of pipelines for all sizes: what is wrong with the formulas is refuted, on few stages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from command import run

from primepar.partition.pipeline.actions import CLOSED_FORMS, ClosedForm, ScheduleName, least
from primepar.schedule.expression import Value, where
from primepar.verify.every_size.pipelines import NOTES, prove_pipeline

ALTERNATING = CLOSED_FORMS["1f1b"]


@pytest.mark.parametrize("schedule", sorted(CLOSED_FORMS))
def test_a_schedule_in_closed_form_is_proved_for_all_sizes(schedule: ScheduleName) -> None:
    results = list(prove_pipeline(schedule, 60))
    assert [result.name for result in results] == list(NOTES)
    assert {result.verdict for result in results} == {"proved"}


def test_the_command_states_what_is_proved_for_every_size() -> None:
    done = run("verify", "1f1b")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == (
        "1f1b: proved for every size, or for stages=4,micro_batches=8,rows=2,width=4 where stated"
    )
    assert "      the start of every action is after all that it waits for" in lines
    assert "      of the program of 1f1b:stages=4,micro_batches=8,rows=2,width=4" in lines


def verdicts(form: ClosedForm, schedule: ScheduleName = "1f1b") -> dict[str, str]:
    """Property -> verdict, with the counterexample of what is refuted."""
    return {
        result.name: result.counterexample or result.verdict
        for result in prove_pipeline(schedule, 60, form)
    }


def with_warm_up(longer: int) -> ClosedForm:
    """1F1B whose warm-up has more forwards, or fewer."""

    def warm_up(s: Value, p: Value, M: Value) -> Value:
        forwards = p - 1 - s + longer
        return least(where(forwards < 0, 0, forwards), M)

    def place(kind: str, s: Value, k: Value, p: Value, M: Value) -> Value:
        first = warm_up(s, p, M)
        if kind == "F":
            return k + 2 * where(k > first, k - first, 0)
        return least(first + 1 + k, M) + 2 * k + (kind == "W")

    def finished(s: Value, k: Value, p: Value, M: Value) -> Value:
        first = warm_up(s, p, M)
        return where(k > first, k - first, 0)

    return replace(ALTERNATING, place=place, finished=finished)


def test_a_warm_up_of_the_published_length_is_the_schedule() -> None:
    assert set(verdicts(with_warm_up(0)).values()) == {"proved"}


def test_a_warm_up_one_too_long_keeps_too_much() -> None:
    answers = verdicts(with_warm_up(1))
    assert answers["coverage"] == "proved"
    assert answers["stashes"] == "p=1, M=2: stage 0: expected 1 stashes at the most, got 2"


def test_a_warm_up_one_too_short_waits_longer() -> None:
    answers = verdicts(with_warm_up(-1))
    assert answers["coverage"] == "proved"
    assert answers["bubble"] == "p=2, M=2: expected a bubble of 3 units, got 6"


def test_a_proof_of_deadlock_freedom_that_fails_without_a_deadlock_is_unknown() -> None:
    (result,) = (
        result for result in prove_pipeline("1f1b", 60, with_warm_up(-1))
        if result.name == "deadlock-freedom"
    )  # fmt: skip
    assert result.verdict == "unknown"
    assert result.reason is not None
    assert result.reason.startswith("expected '")
    assert " ends before a later " in result.reason


def exchanged(first: str, second: str) -> ClosedForm:
    """1F1B in which two kinds of action have each other's place."""

    def place(kind: str, s: Value, k: Value, p: Value, M: Value) -> Value:
        other = {first: second, second: first}.get(kind, kind)
        return ALTERNATING.place(other, s, k, p, M)

    return replace(ALTERNATING, place=place)


def test_a_backward_before_its_forward_never_starts() -> None:
    answers = verdicts(exchanged("F", "B"))
    assert answers["deadlock-freedom"] == (
        "p=1, M=1: stage 0 waits at B(0) for what never comes"
    )  # fmt: skip


def test_a_weight_gradient_before_the_gradient_that_it_reads_never_starts() -> None:
    answers = verdicts(exchanged("B", "W"))
    assert answers["deadlock-freedom"] == (
        "p=1, M=1: stage 0 waits at W(0) for what never comes"
    )  # fmt: skip


def test_one_stage_with_another_order_of_backwards_is_a_deadlock() -> None:
    """Stage 0 of GPipe runs its backwards in order, all others in reverse: B(0) comes last."""
    form = CLOSED_FORMS["gpipe"]

    def place(kind: str, s: Value, k: Value, p: Value, M: Value) -> Value:
        in_order = M + 2 * k + (kind == "W")
        usual = form.place(kind, s, k, p, M)
        return usual if kind == "F" else where(s < 1, in_order, usual)

    answers = verdicts(replace(form, place=place), "gpipe")
    assert answers["message order"] == (
        "p=2, M=2: stage 1 sends dx.1[1,0] before dx.1[0,0], stage 0 uses it after"
    )
    assert answers["coverage"] == "proved"
    assert answers["bubble"].startswith("p=2, M=2: expected a bubble of 3 units")


def test_two_actions_with_one_place_are_not_each_once() -> None:
    def place(kind: str, s: Value, k: Value, p: Value, M: Value) -> Value:
        return ALTERNATING.place("B" if kind == "W" else kind, s, k, p, M)

    answers = verdicts(replace(ALTERNATING, place=place))
    assert answers["coverage"] == (
        "p=1, M=1: stage 0: expected each place once, got B(0) at 1, W(0) at 1"
    )


def test_a_stage_that_runs_its_forwards_in_reverse_is_a_deadlock() -> None:
    """Stage 1 needs the last micro-batch first, before stage 0 has its first backward back."""

    def place(kind: str, s: Value, k: Value, p: Value, M: Value) -> Value:
        other = M - 1 - k
        usual = ALTERNATING.place(kind, s, k, p, M)
        return where(s < p - 1, usual, ALTERNATING.place(kind, s, other, p, M))

    answers = verdicts(replace(ALTERNATING, place=place))
    assert answers["deadlock-freedom"] == (
        "p=2, M=3: stage 0 waits at B(0) for what never comes"
    )  # fmt: skip
    assert answers["message order"].startswith("p=2, M=2: stage 0 sends x.1[0,0] before x.1[1,0]")


def test_too_little_time_is_unknown() -> None:
    results = list(prove_pipeline("1f1b", 0.0))
    assert {result.verdict for result in results} == {"unknown"}
    assert results[0].reason == (
        "F(k) has one of the 3 M places: Z3 did not decide it within its time limit"
    )
