"""The simulator refuses what would never end, and what it cannot time, in one line."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from simulator_cases import ITEM, cluster, program

from primepar.errors import ClusterError, DeadlockError, MismatchError, PrimeParError, ProgramError
from primepar.plan.simulator.run import simulate
from primepar.schedule.program import (
    AllReduce,
    Barrier,
    Evict,
    Instruction,
    IRecv,
    ISend,
    Program,
    Recv,
    Reduce,
    Send,
    Wait,
)


def refusal(wrong: Program, kind: type[PrimeParError], overlap: bool = True) -> str:
    with pytest.raises(kind) as caught:
        simulate(wrong, cluster(overlap=overlap), "float32")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("overlap", [True, False])
def test_sends_head_on_wait_without_end(overlap: bool) -> None:
    wrong = program(
        [Send(1, "x[0]"), Recv(1, "y[0]")], [Send(0, "y[0]"), Recv(0, "x[0]")], x=1, y=1
    )
    assert refusal(wrong, DeadlockError, overlap) == (
        "expected every rank to end, got 2 that wait without end: rank 0 at programs[0][0] "
        "(send x[0] -> 1) waits for rank 1 to receive x[0]; rank 1 at programs[1][0] "
        "(send y[0] -> 0) waits for rank 0 to receive y[0]"
    )


def test_a_rank_that_waits_for_one_that_has_finished_and_another_that_waits_for_it() -> None:
    wrong = program(
        [IRecv(1, "x[0]", request="a"), Wait("a")], [], [Barrier((0, 2, 3))], [Barrier((0, 2, 3))],
        x=1,
    )  # fmt: skip
    assert refusal(wrong, DeadlockError) == (
        "expected every rank to end, got 3 that wait without end: rank 0 at programs[0][1] "
        "(wait a) waits for rank 1 to send x[0]; rank 1 has finished (and 2 more wait)"
    )


def test_a_collective_that_nobody_else_calls() -> None:
    wrong = program([AllReduce((0, 1, 2), block="x[0]")], [], [], x=1)
    assert refusal(wrong, DeadlockError) == (
        "expected every rank to end, got 1 that wait without end: rank 0 at programs[0][0] "
        "(all_reduce x[0] over 0,1,2) waits for ranks 1, 2 to call all_reduce x[0] over 0,1,2; "
        "rank 1 has finished"
    )


MISMATCHES: dict[str, tuple[tuple[list[Instruction], ...], str]] = {
    "tags": (
        ([Send(1, "x[0]", tag=1)], [Recv(0, "y[0]")]),
        "programs[1][0]: expected send x[0] -> 1 and recv y[0] <- 0, which match in order, to have "
        "one tag, got two: post sends and receives in one order, tags select nothing",
    ),
    "collectives": (
        ([AllReduce((0, 1), block="x[0]")], [Reduce((0, 1), block="x[0]", root=0)]),
        "programs[1][0]: expected all_reduce x[0] over 0,1 as on rank 0, got reduce x[0] over 0,1: "
        "call collectives in one order on every member",
    ),
    "not a member": (
        ([AllReduce((1,), block="x[0]")], []),
        "programs[0][0]: expected rank 0 in the group of its own collective, got all_reduce x[0] "
        "over 1: name it, or leave the call out",
    ),
    "not posted": (
        ([Wait("a")],),
        "programs[0][0]: expected a wait for what was posted, got 'a': post it before",
    ),
    "posted twice": (
        ([ISend(1, "x[0]", request="a"), ISend(1, "x[0]", request="a")], []),
        "programs[0][1]: expected a request that is not in use, got 'a' again: wait for it first, "
        "or give this one another name",
    ),
    "not waited for": (
        ([ISend(1, "x[0]", request="a")], [Recv(0, "x[0]")]),
        "rank 0: expected request 'a' to be waited for, got the end of the program: add a wait",
    ),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_ends_that_do_not_agree(name: str) -> None:
    programs, expected = MISMATCHES[name]
    assert refusal(program(*programs, x=1, y=1), MismatchError) == expected


def test_a_block_of_unknown_size() -> None:
    assert refusal(program([Send(1, "x")], [Recv(0, "x")]), ProgramError) == (
        "expected the elements of x, which its time depends on, got none: "
        "write the shape of the operator, or the cuts of its tensor in tensors"
    )


def test_a_transfer_to_a_host() -> None:
    assert refusal(program([Evict("x[0]")], x=1), ProgramError) == (
        "programs[0][0]: expected no transfer to or from a host, as cluster a small one has no "
        "host_bandwidth, got evict x[0]: leave it out, or write host_bandwidth = 2.5e10 in the "
        "cluster's file"
    )


def test_more_ranks_than_devices() -> None:
    assert refusal(program(*[[]] * 5), ClusterError) == (
        "expected at most the 4 devices of the cluster a small one, got 5 ranks: take a larger "
        "cluster"
    )


def test_a_data_type_that_the_cluster_has_no_rate_of() -> None:
    with pytest.raises(ClusterError) as caught:
        simulate(program([]), cluster(), "float16")
    assert str(caught.value) == (
        "expected a data type that the cluster a small one has rates of (float32), got float16: "
        "take one of these, or add [rates.float16]"
    )


def test_a_message_to_oneself_is_counted_and_ends() -> None:
    wrong = program(
        [ISend(0, "x[0]", request="a"), IRecv(0, "y[0]", request="b"), Wait("a"), Wait("b")],
        x=2, y=2,
    )  # fmt: skip
    assert simulate(wrong, replace(cluster(), overlap=False), "float32").sent == [2 * ITEM]
