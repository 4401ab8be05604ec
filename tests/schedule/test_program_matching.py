"""Every way to communicate: the prover, the explorer and the emulator agree on what ends."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from oracle.explore import explore
from profiles import few
from random_programs import ProgramMaker
from simulator_cases import cluster

from primepar.certify.program import certify_program
from primepar.distributed.runtime.backend_support import check_runs
from primepar.errors import MismatchError, ProgramError
from primepar.plan.simulator.run import simulate
from primepar.reference.emulator.executor import emulate
from primepar.schedule import Program
from primepar.schedule.effects import initial_blocks
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Gather,
    Group,
    Instruction,
    ISend,
    Recv,
    Scatter,
    Send,
    Wait,
)
from primepar.schedule.program_file import program_json
from primepar.schedule.signature import Tensor
from primepar.verify import verify_program
from primepar.verify.certificate.program import certificate

BOTH, THREE = (0, 1), (0, 1, 2)


def program(*lists: tuple[Instruction, ...]) -> Program:
    return Program("primepar-program", 1, len(lists), lists)


def sentence(wrong: Program, buffered: bool = False) -> str:
    """The counterexample to deadlock-freedom, which the explorer confirms; empty if proved."""
    proof = verify_program(wrong, buffered=buffered)["deadlock-freedom"]
    seen = explore(wrong, buffered=buffered, every=True).verdict("deadlock-freedom")
    assert proof.verdict == seen, program_json(wrong)
    return proof.counterexample or ""


@few
@pytest.mark.parametrize("seed", range(80))
def test_random_programs_have_one_verdict(seed: int) -> None:
    drawn = ProgramMaker(seed).program()
    sentence(drawn, buffered=seed % 2 == 1)
    if verify_program(drawn).verdict == "proved":
        blocks = initial_blocks(drawn)
        emulate(drawn, [{name: np.zeros(1) for name in names} for names in blocks])


def test_a_tag_is_a_claim_and_selects_no_message() -> None:
    first = (ISend(1, "x", tag=1, request="a"), ISend(1, "y", tag=2, request="b"))
    lists = (*first, Wait("a"), Wait("b")), (Recv(0, "y", tag=2), Recv(0, "x", tag=1))
    assert sentence(program(*lists)) == (
        "rank 1, instruction 0 (recv y <- 0): expected tag 2, got tag 1 from rank 0, instruction 0 "
        "(isend x -> 1): messages match in order and tags do not select them, so post them in one "
        "order on both ranks"
    )


def test_a_posted_collective_meets_a_blocking_one() -> None:
    blocking = Broadcast(BOTH, block="x", root=0)
    assert not sentence(program((blocking,), (replace(blocking, request="r"), Wait("r"))))


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


def test_the_sides_of_a_collective_state_one_count() -> None:
    root = Gather(BOTH, block="a", root=0, blocks=("a0", "a1"), count=3)
    for same in (3, None):
        assert not sentence(program((root,), (Gather(BOTH, block="a", root=0, count=same),)))
    assert sentence(program((root,), (Gather(BOTH, block="a", root=0, count=4),))) == (
        "rank 1, instruction 0 (gather a -> 0 over 0,1): expected count 3 as in rank 0, "
        "instruction 0 (gather a -> a0 a1 over 0,1), got 4: write the same on all of its ranks"
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Send(1, "y[0]"), Recv(0, "y[1]")),
        (Broadcast(BOTH, block="y[0]", root=0), Broadcast(BOTH, block="y[1]", root=0)),
        (AllReduce(BOTH, block="x", also=("y[0]",)), AllReduce(BOTH, block="x", also=("y[1]",))),
        (AllGather(BOTH, block="y[0]", blocks=("y[0]", "x")),
         AllGather(BOTH, block="x", blocks=("y[1]", "x"))),
        (AllToAll(BOTH, blocks=("x", "y[0]"), into=("x", "z")),
         AllToAll(BOTH, blocks=("z", "x"), into=("y[1]", "x"))),
    ],
)  # fmt: skip
def test_what_is_sent_and_where_it_goes_are_of_one_size(
    first: Instruction, second: Instruction
) -> None:
    tensors = {"y": Tensor(((0, 2, 5),))}  # y[0] has 2 elements, y[1] has 3
    wrong = replace(program((first,), (second,)), tensors=tensors)
    text = sentence(wrong)
    assert " elements as in rank 0" in text
    assert text.endswith("send and receive blocks of one size")
    given = {"x": np.zeros(1), "z": np.zeros(1), "y[0]": np.zeros(2), "y[1]": np.zeros(3)}
    with pytest.raises(MismatchError, match="expected elements 2 "):
        emulate(wrong, [given, given])
    # Of a block without meaning nothing is known, so it meets any other.
    assert not sentence(program((first,), (second,)))


def test_the_emulator_gathers_and_scatters() -> None:
    lists: list[tuple[Instruction, ...]] = [
        (
            Scatter(THREE, block="x", root=0, blocks=("a", "b", "c") if rank == 0 else ()),
            Gather(THREE, block="x", root=2, blocks=("d", "e", "f") if rank == 2 else ()),
        )
        for rank in THREE
    ]
    memories = [{"a": np.array([1]), "b": np.array([10]), "c": np.array([100])} for _ in THREE]
    blocks = emulate(program(*lists), memories).blocks
    assert [int(blocks[2][name].array[0]) for name in "def"] == [1, 10, 100]


REFUSED: dict[str, tuple[Instruction, ...]] = {
    "programs[0][0]: a gather": (Gather(BOTH, block="x", root=1),),
    "programs[0][0]: a scatter": (Scatter(BOTH, block="x", root=1),),
    "programs[0][0]: a group with a request": (Group((Send(1, "x"),), request="g"), Wait("g")),
}
OTHERS: dict[str, Instruction] = {
    "programs[0][0]: a gather": Gather(BOTH, block="x", root=1, blocks=("a", "b")),
    "programs[0][0]: a scatter": Scatter(BOTH, block="x", root=1, blocks=("a", "b")),
    "programs[0][0]: a group with a request": Recv(0, "x"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_only_proved_is_refused_elsewhere_in_one_line(what: str) -> None:
    drawn = program(REFUSED[what], (OTHERS[what],))
    report = verify_program(drawn)
    assert report.verdict == "proved"
    known = f"got {what}: only verify and check know it"
    with pytest.raises(ProgramError) as executed:
        check_runs(drawn)
    assert str(executed.value) == f"expected a program that the executor runs, {known}"
    with pytest.raises(ProgramError) as priced:
        simulate(drawn, cluster(), "float32")
    assert str(priced.value) == f"expected a program that the simulator prices, {known}"
    certify_program(certificate(drawn, report), drawn)
