"""Every way to communicate: the prover, the explorer and the emulator agree on what ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attack_matching import verdicts
from msgspec.structs import replace
from oracle.explore import explore
from random_programs import ProgramMaker
from simulator_cases import cluster

from primepar.distributed.runtime.backend_support import check_runs
from primepar.errors import CertificateError, ProgramError
from primepar.plan.simulator.run import simulate
from primepar.reference.emulator.executor import emulate
from primepar.schedule import Program
from primepar.schedule.program import (
    ANY,
    Barrier,
    Broadcast,
    Gather,
    Group,
    Instruction,
    IRecv,
    ISend,
    Recv,
    Scan,
    Scatter,
    Send,
    SplitCommunicator,
    Wait,
)
from primepar.schedule.program_uses import initial_blocks
from primepar.verify import verify_program
from primepar.verify.certificate.program import certificate

BOTH, THREE = (0, 1), (0, 1, 2)


def program(*lists: tuple[Instruction, ...], mpi: bool = False) -> Program:
    rules: Any = "mpi" if mpi else None
    return Program("primepar-program", 1, len(lists), lists, rules=rules)


def sentence(wrong: Program, buffered: bool = False) -> str:
    """The counterexample to deadlock-freedom, which the explorer confirms; empty if proved."""
    proof = verify_program(wrong, buffered=buffered)["deadlock-freedom"]
    seen = explore(wrong, buffered=buffered, every=True).verdict("deadlock-freedom")
    assert proof.verdict == seen
    return proof.counterexample or ""


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_have_one_verdict(seed: int) -> None:
    for open_receives in (False, True):
        drawn = ProgramMaker(seed, open_receives=open_receives).program()
        prover, explorer = verdicts(drawn, buffered=seed % 2 == 1)
        assert prover == explorer
        if verify_program(drawn).verdict == "proved":
            blocks = initial_blocks(drawn)
            emulate(drawn, [{name: np.zeros(1) for name in names} for names in blocks])


HEAD_ON: tuple[tuple[Instruction, ...], ...] = (
    (Send(1, "x"), Recv(1, "y")),
    (Send(0, "y"), Recv(0, "x")),
)


@pytest.mark.parametrize(
    ("mode", "ends", "ends_buffered"),
    [
        ("standard", False, True),
        ("buffered", True, True),
        ("synchronous", False, False),
    ],
)
def test_the_mode_of_a_send_decides_who_waits(mode: Any, ends: bool, ends_buffered: bool) -> None:
    sends = program(*[(replace(first, mode=mode), last) for first, last in HEAD_ON])
    assert (not sentence(sends), not sentence(sends, buffered=True)) == (ends, ends_buffered)


def test_a_ready_send_needs_its_receive_before_it() -> None:
    early = (IRecv(0, "x", request="r"), Barrier(BOTH), Wait("r"))
    assert not sentence(program((Barrier(BOTH), Send(1, "x", mode="ready")), early))
    late = (Barrier(BOTH), Recv(0, "x"))
    assert sentence(program((Barrier(BOTH), Send(1, "x", mode="ready")), late)) == (
        "rank 0, instruction 1 (send x -> 1, ready): expected its receive to be posted before it "
        "in every run, got rank 1, instruction 1 (recv x <- 0), which may come later: let this "
        "rank wait for it, or drop the mode"
    )


def test_tags_select_under_the_rules_of_mpi_alone() -> None:
    lists = (
        (
            ISend(1, "x", tag=1, request="a"),
            ISend(1, "y", tag=2, request="b"),
            Wait("a"),
            Wait("b"),
        ),
        (Recv(0, "y", tag=2), Recv(0, "x", tag=1)),
    )
    assert not sentence(program(*lists, mpi=True))
    assert "messages match in order and tags do not select them" in sentence(program(*lists))
    lost = (lists[0], (Recv(0, "y", tag=3), Recv(0, "x", tag=1)))
    assert sentence(program(*lost, mpi=True)) == (
        "rank 1, instruction 0 (recv y <- 0): expected a send to rank 1 on rank 0 with tag 3 to "
        "match, got none that is left: add it there, or remove this one"
    )


def test_mpi_never_matches_a_blocking_collective_with_a_posted_one() -> None:
    blocking = Broadcast(BOTH, block="x", root=0, source="bcast.py:3")
    posted = (replace(blocking, request="r", source="bcast.py:7"), Wait("r"))
    assert not sentence(program((blocking,), posted))
    assert sentence(program((blocking,), posted, mpi=True)) == (
        "rank 1, instruction 0 (broadcast x over 0,1, posted) at bcast.py:7: expected a blocking "
        "call as in rank 0, instruction 0 (broadcast x over 0,1) at bcast.py:3, got a posted one: "
        "MPI matches neither with the other, so make both calls alike"
    )


def test_all_that_an_open_receive_may_take_is_followed() -> None:
    either = (Send(0, "a"),)
    second = (Recv(ANY, "x"), Recv(2, "y"))
    assert not sentence(program((Recv(ANY, "x"), Recv(ANY, "y")), either, either, mpi=True))
    assert sentence(program(second, either, either, mpi=True)) == (
        "rank 0, instruction 1 (recv y <- 2): expected a send to rank 0 on rank 2 with tag 0 to "
        "match, got none that is left: add it there, or remove this one\n"
        "  where rank 0, instruction 0 (recv x <- any) takes rank 2, instruction 0 (send a -> 0)"
    )


def test_a_buffered_send_lets_another_message_be_first() -> None:
    # Only if the system buffers c can b be there before a.
    lists = (
        (Recv(ANY, "x"), Recv(2, "y")),
        (Send(0, "a"), Recv(2, "c")),
        (Send(1, "c"), Send(0, "b")),
    )
    assert sentence(program(*lists, mpi=True)) == (
        "rank 0, instruction 1 (recv y <- 2): expected a send to rank 0 on rank 2 with tag 0 to "
        "match, got none that is left: add it there, or remove this one\n"
        "  where rank 0, instruction 0 (recv x <- any) takes rank 2, instruction 1 (send b -> 0)\n"
        "  where the system has buffered rank 2, instruction 0 (send c -> 1)"
    )
    waiting = [(replace(lists[rank][0], mode="synchronous"), lists[rank][1]) for rank in (1, 2)]
    assert not sentence(program(lists[0], *waiting, mpi=True))


def test_a_message_with_another_count_may_be_the_one_that_is_taken() -> None:
    wrong = (Send(0, "a", count=4),)
    receives = (Recv(ANY, "x", count=5), Recv(ANY, "y"))
    assert "expected count 4 as in rank 1" in sentence(
        program(receives, wrong, (Send(0, "b"),), mpi=True)
    )


def test_beyond_the_bound_nothing_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("primepar.verify.program.open_receives.MOST_STATES", 3)
    workers = [(Send(0, "a"), Send(0, "b"))] * 2
    many = program(tuple(Recv(ANY, f"x{number}") for number in range(4)), *workers, mpi=True)
    result = verify_program(many)["deadlock-freedom"]
    assert (result.verdict, result.reason) == (
        "unknown",
        "receives from any rank lead to more than 3 states: name their peers, or take fewer ranks",
    )


def test_a_communicator_of_a_split_is_of_its_members_alone() -> None:
    low = SplitCommunicator(THREE, into="low")
    none = SplitCommunicator(THREE)
    call = Barrier(BOTH, communicator="low")
    assert not sentence(program((low, call), (low, call), (none,)))
    assert sentence(program((call, low), (low, call), (none,))) == (
        "rank 0, instruction 0 (barrier over 0,1): expected communicator low to be made on this "
        "rank before, got none: move its split before this"
    )
    wide = Barrier(THREE, communicator="low")
    assert sentence(program((low, wide), (low, wide), (none,))).startswith(
        "rank 0, instruction 1 (barrier over 0,1,2): expected all ranks of low, 0,1, in the group, "
        "got 0,1,2: call it on all"
    )


def test_a_group_may_be_posted() -> None:
    first = Group((Send(1, "x"), Recv(1, "y")), request="g")
    second = Group((Send(0, "y"), Recv(0, "x")))
    assert not sentence(program((first, Wait("g")), (second,)))
    late = program((first, Send(1, "y"), Wait("g")), (second, Recv(0, "z")))
    races = verify_program(late)["races"]
    assert races.counterexample == (
        "rank 0, instruction 1 (send y -> 1): expected y to be left alone while instruction 0 "
        "(recv y <- 1) is in flight, got it read: move its wait for 'g' before this instruction, "
        "or use another block"
    )


def test_counts_of_members_are_compared_piece_by_piece() -> None:
    root = Gather(BOTH, block="a", root=0, blocks=("a0", "a1"), counts=(2, 3))
    assert not sentence(program((root,), (Gather(BOTH, block="a", root=0, count=3),)))
    assert sentence(program((root,), (Gather(BOTH, block="a", root=0, count=4),))) == (
        "rank 1, instruction 0 (gather a -> 0 over 0,1): expected count of rank 1 3 as in rank 0, "
        "instruction 0 (gather a -> a0 a1 over 0,1), got 4: write the same on all of its ranks"
    )


def test_the_emulator_gathers_scatters_and_scans() -> None:
    lists: list[tuple[Instruction, ...]] = [
        (
            Scatter(THREE, block="x", root=0, blocks=("a", "b", "c") if rank == 0 else ()),
            Scan(THREE, block="x"),
            Scan(THREE, block="y", exclusive=True),
            Gather(THREE, block="x", root=2, blocks=("d", "e", "f") if rank == 2 else ()),
        )
        for rank in THREE
    ]
    memories = [
        {"a": np.array([1]), "b": np.array([10]), "c": np.array([100]), "y": np.array([rank + 1])}
        for rank in THREE
    ]
    blocks = emulate(program(*lists), memories).blocks
    assert [int(blocks[2][name].array[0]) for name in "def"] == [1, 11, 111]
    assert [int(blocks[rank]["y"].array[0]) for rank in THREE] == [1, 1, 3]


REFUSED: dict[str, tuple[Instruction, ...]] = {
    "programs[0][0]: a scan": (Scan(BOTH, block="x"),),
    "programs[0][0]: a split": (SplitCommunicator(BOTH, into="pair"),),
    "programs[0][0]: a buffered send": (Send(1, "x", mode="buffered"),),
    "programs[0][0]: a group with a request": (Group((Send(1, "x"),), request="g"), Wait("g")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_only_proved_is_refused_elsewhere_in_one_line(what: str) -> None:
    sends = what.endswith(("send", "request"))
    drawn = program(REFUSED[what], (Recv(0, "x"),) if sends else REFUSED[what])
    report = verify_program(drawn)
    assert report.verdict == "proved"
    known = f"got {what}: only verify, explore and check know it"
    with pytest.raises(ProgramError) as executed:
        check_runs(drawn)
    assert str(executed.value) == f"expected a program that the executor runs, {known}"
    with pytest.raises(ProgramError) as priced:
        simulate(drawn, cluster(), "float32")
    assert str(priced.value) == f"expected a program that the simulator prices, {known}"
    with pytest.raises(CertificateError) as certified:
        certificate(drawn, report)
    assert str(certified.value) == (
        "no certificate, as its checker asks more: program: expected one that certificates know, "
        f"got {what}"
    )
