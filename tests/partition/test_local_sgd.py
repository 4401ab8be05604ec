"""Local SGD: exact on integers, proved for every size; wrong programs are in `test_mutants`."""

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
from step_cases import place, spoilt

import primepar
from primepar.partition.local_sgd import LocalSGD, average_share, averaging_steps, next_count
from primepar.schedule.primitive import where
from primepar.schedule.program import AllReduce, Instruction
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


def test_the_counterexample_of_a_wrong_coefficient_names_both() -> None:
    program = LocalSGD(workers=3, period=2, steps=5, warm_up=1).program()

    def halved(rank: int, nodes: list[Instruction]) -> None:
        number = place(nodes, "all_reduce 1/3 * model.3[0,0]")
        nodes[number] = replace(nodes[number], scale="1/2")

    wrong = primepar.verify(spoilt(program, halved))["completion"].counterexample
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
