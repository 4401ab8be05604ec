"""A posted collective lets its rank go on, and its blocks are left alone until its wait."""

from __future__ import annotations

import numpy as np
import pytest
from emulator_cases import ranks as listed
from emulator_cases import refused
from oracle.explore import explore

from primepar.errors import DeadlockError, InFlightError
from primepar.reference import emulate
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Broadcast,
    Compute,
    Free,
    Instruction,
    Program,
    Recv,
    Reduce,
    Send,
    Wait,
)
from primepar.verify.program import verify_program


def late(request: str | None) -> tuple[tuple[Instruction, ...], ...]:
    """One rank calls a broadcast before it sends what the other receives before its own call."""
    call = Broadcast((0, 1), block="x", root=0, request=request)
    ends = (Wait(request),) if request else ()
    return (call, Send(1, "y"), *ends), (Recv(0, "y"), call, *ends)


def test_a_posted_collective_lets_its_rank_go_on() -> None:
    first, second = late("a")
    program = Program("primepar-program", 1, 2, (first, second))
    ones = [{"x": np.ones(2), "y": np.zeros(2)}, {}]
    assert emulate(program, ones).memories[1]["x"].tolist() == [1, 1]
    assert explore(program, every=True).failed == frozenset()
    assert verify_program(program).verdict == "proved"


def test_a_blocking_one_holds_it_up() -> None:
    refused(
        listed(*late(None)),
        DeadlockError,
        "expected every device to end, got 2 that wait without end: device 0 at programs[0][0] "
        "waits for device 1 to call broadcast over 0,1 root=0; device 1 at programs[1][0] waits "
        "for device 0 to send y",
    )


def test_a_posted_call_meets_a_blocking_one() -> None:
    program = Program(
        "primepar-program", 1, 2,
        ((AllReduce((0, 1), block="x", request="a"), Wait("a")), (AllReduce((0, 1), block="x"),)),
    )  # fmt: skip
    run = emulate(program, [{"x": np.ones(2)}, {"x": np.ones(2)}])
    assert [memory["x"].tolist() for memory in run.memories] == [[2, 2], [2, 2]]
    assert run.sent == [2, 2]
    assert explore(program, every=True).failed == frozenset()
    assert verify_program(program).verdict == "proved"


@pytest.mark.parametrize("rank", [0, 1])
def test_the_blocks_of_a_posted_collective_may_not_be_used(rank: int) -> None:
    reduce, ends = Reduce((0, 1), block="x", root=1, request="a"), Wait("a")
    ranks: list[tuple[Instruction, ...]] = [(reduce, ends), (reduce, ends)]
    ranks[rank] = (reduce, Free("x"), ends)
    verb = "received" if rank else "sent"
    refused(
        listed(*ranks),
        InFlightError,
        f"device {rank}, programs[{rank}][1]: expected x to be left alone while it is being "
        f"{verb}, got it freed: move the wait before this instruction",
    )


def test_what_is_only_given_may_be_read() -> None:
    gather = AllGather((0, 1), block="x", blocks=("y", "z"), request="a")
    rank = (gather, Compute(("x",), "w"), Wait("a"))
    program = Program("primepar-program", 1, 2, (rank, rank))
    run = emulate(program, [{"x": np.ones(2)}, {"x": np.zeros(2)}])
    assert [memory["w"].tolist() for memory in run.memories] == [[1, 1], [0, 0]]
    assert verify_program(program).verdict == "proved"
