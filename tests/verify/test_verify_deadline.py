"""The deadline of a proof holds for all that it looks for, and what it cuts off is unknown."""

from __future__ import annotations

import inspect
import math
import signal
import sys
from contextlib import suppress
from itertools import combinations
from subprocess import PIPE, Popen, TimeoutExpired
from time import perf_counter
from typing import Any

import msgspec
import phase_programs
import pytest
import z3

from primepar.partition import parse_sequence
from primepar.schedule import Linear, Program, lower
from primepar.schedule import deadline as limits
from primepar.schedule.deadline import UnansweredError, deadline, in_time, seconds_left
from primepar.schedule.signature import Bound
from primepar.verify import z3_answer as answer
from primepar.verify.program import verify_program
from primepar.verify.z3_answer import check_by

Json = dict[str, Any]
LATE = "no answer within 0.001 s: give it a longer --timeout"
LOOKS = 3
"""At the start, the first one after the end, and one for the reason."""


class Clock:
    """A clock that goes on by a second whenever somebody looks at it."""

    looks = 0

    def __call__(self) -> float:
        self.looks += 1
        return float(self.looks)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What deadlines look at."""
    made = Clock()
    monkeypatch.setattr(limits, "perf_counter", made)
    return made


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
def test_every_property_keeps_to_it(
    large: Program, name: str, buffered: bool, clock: Clock
) -> None:
    (result,) = verify_program(large, "p", buffered, timeout=0.001, only=name).properties
    assert (result.verdict, result.reason) == ("unknown", LATE)
    assert clock.looks == LOOKS


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
    report = verify_program(doubled(["max", "sum"] * 2000), timeout=2)
    assert report["completion"].verdict in ("refuted", "unknown")


def pigeons(holes: int) -> z3.Solver:
    """One more pigeon than holes, which Z3 tries out one by one: for 14 holes, for hours."""
    solver = z3.SimpleSolver()
    sits = [
        [z3.Bool(f"{pigeon} in {hole}") for hole in range(holes)] for pigeon in range(holes + 1)
    ]
    solver.add(*map(z3.Or, sits))
    for hole in zip(*sits, strict=True):
        solver.add(*(z3.Not(z3.And(*pair)) for pair in combinations(hole, 2)))
    return solver


def test_z3_keeps_to_it_after_the_limit_on_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer, "SHORT_WORK", 1)
    assert check_by(pigeons(14), perf_counter() + 0.5) == z3.unknown
    assert check_by(pigeons(4), perf_counter()) == z3.unknown


def test_z3_stops_at_a_limit_on_its_work_however_much_time_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same question then has the same answer on a fast machine and on a slow one."""
    monkeypatch.setattr(answer, "SHORT_WORK", 1)
    assert check_by(pigeons(4), perf_counter() + 1e6) == z3.unsat
    monkeypatch.setattr(answer, "MOST_WORK", 1)
    assert check_by(pigeons(4), perf_counter() + 1e6) == z3.unknown


ENDLESS = """
import z3
from itertools import combinations
from subprocess import PIPE, Popen
from time import perf_counter
from primepar.verify import z3_answer
from primepar.schedule.deadline import deadline
{pigeons}
z3_answer.SHORT, z3_answer.SHORT_WORK = {short}, 10**9
with deadline(1e5):
    question = pigeons(14)
    print("asked", flush=True)
    z3_answer.check_by(question, perf_counter() + 1e5)
print("answered")
"""


@pytest.mark.parametrize("short", [0.0, 1e6])
def test_ctrl_c_ends_a_question_with_and_without_a_clock(short: float) -> None:
    text = ENDLESS.format(pigeons=inspect.getsource(pigeons), short=short)
    with Popen([sys.executable, "-c", text], stdout=PIPE, stderr=PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == "asked\n"
        while child.poll() is None:
            child.send_signal(signal.SIGINT)
            with suppress(TimeoutExpired):
                child.wait(timeout=1.0)
        assert child.stdout.read() == ""
        assert child.stderr.read().endswith("KeyboardInterrupt\n")
