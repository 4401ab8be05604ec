"""Local SGD: exact on integers, proved for every size, and refuted when it averages wrongly."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from command import run
from local_sgd_cases import Whole, drawn, emulated
from msgspec.structs import replace
from numpy.typing import NDArray
from profiles import IS_LONG, draws

import primepar
from primepar.partition.local_sgd import LocalSGD, average_share, averaging_steps, next_count
from primepar.schedule.primitive import where
from primepar.schedule.program import AllReduce, Compute, Instruction, Program
from primepar.verify.every_size.local_sgd import prove_period

SIZES = 200 if IS_LONG else 25


def dense(method: LocalSGD, whole: Whole) -> NDArray[Any]:
    """The last model, by the definition: in Python's integers, without a program."""
    K, S, H = method.workers, method.warm_up, method.period
    models: list[Any] = [whole["model.0"].astype(int).astype(object) for _ in range(K)]
    for t in range(method.steps):
        x, y = (whole[f"{name}.{t}"].astype(int).astype(object) for name in "xy")
        gradients = [x[k].T @ (x[k] @ models[k] - y[k]) for k in range(K)]
        if t < S:
            models = [models[0] - sum(gradients)] * K
        else:
            models = [
                model - K * gradient for model, gradient in zip(models, gradients, strict=True)
            ]
        if t >= S and ((t - S) % H == H - 1 or t == method.steps - 1):
            total = sum(models)
            assert not np.any(total % K)
            models = [total // K] * K
    return np.asarray(models[0])


def sizes(count: int) -> Iterable[LocalSGD]:
    """Sizes of which every quantity is an integer: with thirds there is no warm-up."""
    chosen = random.Random(14)
    for _ in range(count):
        workers, steps = chosen.choice((1, 2, 3, 4, 6, 8)), chosen.randint(1, 6)
        warm_up = chosen.randint(0, steps) if workers in (1, 2, 4, 8) else 0
        rows, inputs, outputs = (chosen.randint(1, 3) for _ in range(3))
        yield LocalSGD(
            workers=workers, period=chosen.randint(1, 7), steps=steps, warm_up=warm_up,
            rows=rows, inputs=inputs, outputs=outputs,
        )  # fmt: skip


def test_generated_sizes_are_exact_on_integers_and_a_fourth_of_them_proved() -> None:
    for number, method in enumerate(sizes(SIZES)):
        program, whole = method.program(), drawn(method, number)
        expected = dense(method, whole)
        assert max(abs(expected).flat) < 2**50
        assert (emulated(program, method, whole) == expected.astype(float)).all(), method.text
        report = primepar.check(program)
        assert report.equal, method.text
        assert max(report.peak) == method.held
        assert set(report.sent) == {float(method.sent)}
        if number % 4 == 0:
            assert primepar.verify(program).verdict == "proved", method.text


def test_a_period_of_one_is_synchronous_sgd() -> None:
    for number, method in enumerate(sizes(draws(40))):
        local, whole = replace(method, period=1, warm_up=0), drawn(method, number)
        if method.workers in (1, 2, 4, 8):
            synchronous = replace(method, warm_up=method.steps)
            models = [emulated(each.program(), each, whole) for each in (local, synchronous)]
            assert (models[0] == models[1]).all(), method.text


def test_a_period_of_all_steps_averages_once() -> None:
    for period in (6, 7, 100):
        method = LocalSGD(workers=4, period=period, steps=6)
        assert method.averages == (5,)
        reduces = [node for node in method.program().programs[0] if isinstance(node, AllReduce)]
        assert [node.block for node in reduces] == ["model.6[0,0]"]


def test_averages_follow_every_period_and_the_end() -> None:
    for steps in range(1, 20):
        for period in range(1, 22):
            for warm_up in range(steps + 1):
                expected = [
                    t for t in range(warm_up, steps)
                    if (t - warm_up) % period == period - 1 or t == steps - 1
                ]  # fmt: skip
                assert list(averaging_steps(steps, period, warm_up)) == expected


# Wrong averages

METHOD = LocalSGD(workers=3, period=2, steps=5, warm_up=1)
Change = Callable[[int, int, Instruction], Iterable[Instruction]]


def altered(change: Change) -> Program:
    """The program with every instruction replaced by what `change` returns for it."""
    program = METHOD.program()
    lists = tuple(
        tuple(new for place, node in enumerate(nodes) for new in change(rank, place, node))
        for rank, nodes in enumerate(program.programs)
    )
    return replace(program, programs=lists)


def reduces(node: Instruction) -> bool:
    return isinstance(node, AllReduce) and node.block == "model.3[0,0]"


def adds(node: Instruction) -> bool:
    return isinstance(node, Compute) and node.phase == "2.average"


def scaled(scale: str) -> Change:
    return lambda rank, place, node: [replace(node, scale=scale) if reduces(node) else node]


def twice(rank: int, place: int, node: Instruction) -> list[Instruction]:
    return [replace(node, scale="1/3") if adds(node) else node]


def left_out(rank: int, place: int, node: Instruction) -> list[Instruction]:
    if not reduces(node):
        return [node]
    return [replace(node, group=(0, 1))] if rank < 2 else []


def one_apart(rank: int, place: int, node: Instruction) -> list[Instruction]:
    return [replace(node, group=(0, 1))] if reduces(node) and rank == 0 else [node]


def too_early(rank: int, place: int, node: Instruction) -> list[Instruction]:
    """The part of the average is made before the last update of its worker."""
    if adds(node) and rank == 1:
        return []
    early = isinstance(node, Compute) and node.phase == "2.update" and rank == 1
    return [*([_early_part()] if early else []), node]


def _early_part() -> Compute:
    parts = [node for node in METHOD.program().programs[1] if adds(node)]
    assert isinstance(parts[0], Compute)
    return parts[0]


def stale(rank: int, place: int, node: Instruction) -> list[Instruction]:
    """One worker averages the model before its last local step."""
    if adds(node) and rank == 1:
        assert isinstance(node, Compute)
        return [replace(node, reads=("local.2[1,0,0]",))]
    keeps = type(node).__name__ == "Free" and getattr(node, "block", "") == "local.2[1,0,0]"
    return [] if keeps else [node]


def not_added(rank: int, place: int, node: Instruction) -> list[Instruction]:
    return (
        [replace(node, scale="1/2")]
        if reduces(node)
        else []
        if adds(node) and rank == 2
        else [node]
    )


TIMES = "expected each 2.average product 1/3 times, got each "
WRONG: dict[str, tuple[Change, str, str]] = {
    "no coefficient": (scaled("1"), "completion", TIMES + "once"),
    "a mean over 2": (scaled("1/2"), "completion", TIMES + "1/2 times"),
    "a mean over 4": (scaled("1/4"), "completion", TIMES + "1/4 times"),
    "divided twice": (twice, "completion", TIMES + "1/9 times"),
    "a rank left out": (left_out, "completion", "N=0, K=0) 1/3 times, got it never: "),
    "another group on one rank": (one_apart, "deadlock-freedom", "rank 0"),
    "before the step ended": (
        too_early,
        "alignment",
        "expected local.3[1,0,0] in this rank's memory, got none there",
    ),
    "of the step before": (stale, "alignment", "got that of 1.update product (W=1, N=0, K=0)"),
    "one worker does not add": (not_added, "coverage", "2.average sub-operator (W=2"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_average_is_refuted_and_seen_by_the_emulator(name: str) -> None:
    change, prop, words = WRONG[name]
    program = altered(change)
    report = primepar.verify(program)
    assert report[prop].verdict == "refuted"
    assert words in str(report[prop].counterexample)
    found = primepar.check(program)
    assert not found.equal


def test_the_program_without_a_change_is_proved() -> None:
    assert primepar.verify(altered(lambda rank, place, node: [node])).verdict == "proved"


def test_the_counterexample_of_a_wrong_coefficient_names_both() -> None:
    wrong = primepar.verify(altered(scaled("1/2")))["completion"].counterexample
    assert wrong is not None
    assert wrong == (
        "rank 0, instruction 30 (3.residual residual.3[0,0,0] += x.3[0,0,0] * model.3[0,0] * "
        "y.3[0,0,0]), which reads model.3[0,0] for the 3.residual sub-operator (W=0, M=0, N=0, "
        "K=0): expected each 2.average product 1/3 times, got each 1/2 times: it is a mean over 2 "
        "instead of 3: see rank 0, instruction 29 (all_reduce 1/2 * model.3[0,0] over 0,1,2)"
    )


# Every size

COUNTS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "after every step": (lambda count, period: 0 * count, "progress"),
    "never": (lambda count, period: count + 1, "range"),
    "one step early": (lambda count, period: where(count + 2 < period, count + 1, 0), "progress"),
    "one step late": (lambda count, period: where(count < period, count + 1, 0), "range"),
    "begins at one": (lambda count, period: where(count + 1 < period, count + 1, 1), "range"),
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_wrong_count_is_refuted(name: str) -> None:
    count, lemma = COUNTS[name]
    period = {result.name: result for result in prove_period(count, 10)}["period"]
    assert period.verdict == "refuted"
    assert str(period.counterexample).startswith(f"expected {lemma!r}, got formulas without it at ")


@pytest.mark.parametrize("count", [next_count, lambda count, period: (count + 1) % period])
def test_a_right_count_is_proved(count: Callable[[Any, Any], Any]) -> None:
    assert {result.verdict for result in prove_period(count, 10)} == {"proved"}


SHARES: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "of four workers": lambda workers: (1, 4),
    "of one worker more": lambda workers: (1, workers + 1),
    "none": lambda workers: (1, 1),
    "twice": lambda workers: (1, workers * workers),
}


@pytest.mark.parametrize("name", SHARES)
def test_a_wrong_share_of_a_worker_is_refuted(name: str) -> None:
    results = {result.name: result for result in prove_period(next_count, 10, SHARES[name])}
    assert (results["average"].verdict, results["period"].verdict) == ("refuted", "proved")
    start = "expected 'weights', got formulas without it at "
    assert str(results["average"].counterexample).startswith(start)


def test_the_programs_have_the_share_that_the_proof_is_about() -> None:
    for workers in range(1, 12):
        program = LocalSGD(workers=workers, period=2, steps=3, warm_up=1).program()
        calls = [
            node for nodes in program.programs for node in nodes if isinstance(node, AllReduce)
        ]
        assert len(calls) == 2 * workers
        assert {call.scale for call in calls} == {str(Fraction(*average_share(workers)))}


def test_the_command_proves_every_size() -> None:
    done = run("verify", "local-sgd")
    assert done.code == 0
    assert done.out.startswith("local-sgd: proved for every size, or for workers=")
    reasons = {result.name: result.reason for result in primepar.verify(LocalSGD).properties}
    of_program = f"of the program of {LocalSGD().text}"
    assert {name for name, reason in reasons.items() if reason != of_program} == {
        "average",
        "period",
    }


def test_wrong_sizes_end_in_one_line() -> None:
    refused = {
        "local-sgd:period=0": "local-sgd: expected period to be an integer from 1 to "
        "9223372036854775807, got '0': write period=4",
        "local-sgd:workers=0": "local-sgd: expected workers to be an integer from 1 to 256, got "
        "'0': write workers=4",
        "local-sgd:steps=4,warm_up=5": "local-sgd: expected a warm_up of at most 4 steps, the "
        "whole run, got 5: write warm_up=4, or more steps",
    }
    for target, message in refused.items():
        assert run("verify", target) == (2, "", f"primepar: error: {message}\n")
