"""The deadline of a proof holds for all that it looks for, and what it cuts off is unknown."""

from __future__ import annotations

import math
from itertools import combinations
from time import perf_counter
from typing import Any

import msgspec
import phase_programs
import pytest
import z3

from primepar.partition import parse_sequence
from primepar.schedule import Linear, Program, lower
from primepar.schedule.deadline import UnansweredError, deadline, in_time, seconds_left
from primepar.schedule.signature import Bound
from primepar.verify import z3_answer as answer
from primepar.verify.program import verify_program
from primepar.verify.z3_answer import check_by

Json = dict[str, Any]
LATE = "no answer within 0.001 s: give it a longer --timeout"
DUE = 5.0
"""Seconds that a crowded machine may take for what stops at once."""


@pytest.fixture(scope="module")
def large() -> Program:
    """All phases of `P8x8`, 64 ranks, with bounds on memory and traffic."""
    sequence = parse_sequence("P8x8")
    program = lower(sequence, Linear.smallest(sequence.grid))
    zeros = (0,) * program.ranks
    return msgspec.structs.replace(program, memory=Bound(device=10**9), traffic=zeros)


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize(
    "name",
    ["coverage", "placement", "completion", "alignment", "deadlock-freedom", "races", "memory",
     "traffic"],
)  # fmt: skip
def test_every_property_keeps_to_it(large: Program, name: str, buffered: bool) -> None:
    start = perf_counter()
    (result,) = verify_program(large, "p", buffered, timeout=0.001, only=name).properties
    assert (result.verdict, result.reason) == ("unknown", LATE)
    assert result.seconds < DUE
    assert perf_counter() - start < 2 * DUE


def test_it_is_for_all_properties_together(large: Program) -> None:
    report = verify_program(large, timeout=0.001)
    assert {result.verdict for result in report.properties} == {"unknown"}
    assert len(report.properties) == 8


def test_it_stops_an_endless_search_and_an_outer_one_comes_back() -> None:
    with pytest.raises(UnansweredError) as raised, deadline(0.01):
        for _ in in_time(iter(int, 1)):
            pass
    assert str(raised.value) == "no answer within 0.01 s: give it a longer --timeout"
    assert seconds_left() == math.inf


def doubled(reductions: list[str]) -> Program:
    """Two halves of a sum, reduced over both ranks again and again: its parts count doubly."""
    ranks = [
        [
            phase_programs.compute("forward", [f"I[0,{k}]", f"W[{k},0]"], "O[0,0]", M=0, N=k, K=0),
            *({"op": "all_reduce", "group": [0, 1], "block": "O[0,0]", "reduction": reduction}
              for reduction in reductions),
        ]
        for k in (0, 1)
    ]  # fmt: skip
    grid = {"forward": {"M": 1, "N": 2, "K": 1}}
    return phase_programs.built(phase_programs.program(ranks, grid=grid))


def test_sums_that_double_are_counted_once_each() -> None:
    assert verify_program(doubled(["sum"])).verdict == "proved"
    report = verify_program(doubled(["sum"] * 300), timeout=20)
    assert report["completion"].counterexample == (
        "rank 0, O[0,0] at the end: expected forward product (M=0, N=0, K=0) once, got it more "
        "than 1000000000 times: fix rank 0, instruction 2 (all_reduce O[0,0] over 0,1)"
    )
    four = verify_program(doubled(["sum"] * 3))["completion"].counterexample
    assert four is not None
    assert four == (
        "rank 0, O[0,0] at the end: expected each forward product once, got each 4 times: it is "
        "added 4 times, so add it once or write scale 1/4: see rank 0, instruction 2 (all_reduce "
        "O[0,0] over 0,1)"
    )


def test_choices_nested_too_deeply_are_unknown_or_refuted_but_end() -> None:
    start = perf_counter()
    report = verify_program(doubled(["max", "sum"] * 2000), timeout=2)
    assert report["completion"].verdict in ("refuted", "unknown")
    assert perf_counter() - start < 4 * DUE


def pigeons(holes: int) -> z3.Solver:
    """One more pigeon than holes, which Z3 tries out one by one."""
    solver = z3.SimpleSolver()
    sits = [
        [z3.Bool(f"{pigeon} in {hole}") for hole in range(holes)] for pigeon in range(holes + 1)
    ]
    solver.add(*map(z3.Or, sits))
    for hole in zip(*sits, strict=True):
        solver.add(*(z3.Not(z3.And(*pair)) for pair in combinations(hole, 2)))
    return solver


def test_z3_keeps_to_it_after_the_limit_on_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "SHORT", 0.0)
    start = perf_counter()
    assert check_by(pigeons(14), start + 0.5) == z3.unknown
    assert 0.5 <= perf_counter() - start < DUE


def test_what_is_more_work_than_that_is_decided_by_the_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer, "WORK", 1)
    assert check_by(pigeons(4), perf_counter() + 100) == z3.unsat
    assert check_by(pigeons(4), perf_counter()) == z3.unknown
