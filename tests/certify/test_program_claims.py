"""Counts, types of data and source lines: claims of both sides, which messages name by line."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec import json
from msgspec.structs import replace
from oracle.explore import explore

from primepar.errors import MismatchError
from primepar.reference.emulator.executor import emulate
from primepar.schedule import Program
from primepar.schedule.program import AllReduce, Instruction, Recv, Send
from primepar.verify import verify_program
from primepar.verify.counterexample.minimal import minimal

SEND = Send(1, "x", count=512, dtype="float32", source="train.py:42")
RECV = Recv(0, "x", count=512, dtype="float32", source="train.py:57")
CALL = AllReduce((0, 1), block="x", count=512, dtype="float32", source="train.py:60")


def program(*programs: tuple[Instruction, ...]) -> Program:
    return Program("primepar-program", 1, len(programs), programs)


def verdicts(wrong: Program) -> tuple[str, str]:
    proof = verify_program(wrong)["deadlock-freedom"]
    assert explore(wrong, every=True).verdict("deadlock-freedom") == proof.verdict
    return proof.verdict, proof.counterexample or ""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (SEND, RECV),
        (SEND, replace(RECV, count=None)),
        (replace(SEND, dtype=None), replace(RECV, dtype="bfloat16")),
        (CALL, CALL),
        (CALL, replace(CALL, count=None, dtype=None)),
    ],
)
def test_sides_that_claim_the_same_or_nothing_match(
    first: Instruction, second: Instruction
) -> None:
    assert verdicts(program((first,), (second,))) == ("proved", "")


@pytest.mark.parametrize(
    ("first", "second", "sentence"),
    [
        (
            SEND,
            replace(RECV, count=256),
            "rank 1, instruction 0 (recv x <- 0) at train.py:57: expected count 512 as in rank 0, "
            "instruction 0 (send x -> 1) at train.py:42, got 256: "
            "write the same on all of its ranks",
        ),
        (
            CALL,
            replace(CALL, dtype="bfloat16", source="train.py:61"),
            "rank 1, instruction 0 (all_reduce x over 0,1) at train.py:61: expected dtype float32 "
            "as in rank 0, instruction 0 (all_reduce x over 0,1) at train.py:60, got bfloat16: "
            "write the same on all of its ranks",
        ),
        (
            SEND,
            replace(RECV, tag=1),
            "rank 1, instruction 0 (recv x <- 0) at train.py:57: expected tag 1, got tag 0 from "
            "rank 0, instruction 0 (send x -> 1) at train.py:42: messages match in order and tags "
            "do not select them, so post them in one order on both ranks",
        ),
    ],
)
def test_sides_that_claim_another_thing_are_named_with_both_lines(
    first: Instruction, second: Instruction, sentence: str
) -> None:
    assert verdicts(program((first,), (second,))) == ("refuted", sentence)


def test_a_claim_of_two_members_out_of_three_is_compared() -> None:
    calls = [
        replace(CALL, group=(0, 1, 2), count=count, source=f"train.py:{line}")
        for line, count in enumerate((None, 3, 4))
    ]
    verdict, sentence = verdicts(program(*[(call,) for call in calls]))
    assert verdict == "refuted"
    assert sentence == (
        "rank 2, instruction 0 (all_reduce x over 0,1,2) at train.py:2: expected count 3 as in "
        "rank 1, instruction 0 (all_reduce x over 0,1,2) at train.py:1, got 4: "
        "write the same on all of its ranks"
    )


def test_a_cycle_names_the_lines() -> None:
    head_on = program(
        (SEND, Recv(1, "y", source="train.py:43")),
        (Send(0, "y", source="train.py:50"), RECV),
    )
    result = verify_program(head_on)["deadlock-freedom"]
    assert (result.counterexample or "").splitlines()[1:3] == [
        "  rank 0 waits in instruction 0 (send x -> 1) at train.py:42 for rank 1 to reach "
        "instruction 1 (recv x <- 0) at train.py:57",
        "  rank 1 waits in instruction 0 (send y -> 0) at train.py:50 for rank 0 to reach "
        "instruction 1 (recv y <- 1) at train.py:43",
    ]
    assert result.details is not None
    assert [(event.rank, event.source) for event in result.details.events] == [
        (0, "train.py:42"), (0, "train.py:43"), (1, "train.py:50"), (1, "train.py:57"),
    ]  # fmt: skip


def test_the_smallest_program_keeps_the_lines() -> None:
    wrong = program((CALL, SEND), (CALL, replace(RECV, count=1)))
    smallest = minimal(wrong, "deadlock-freedom")
    assert smallest is not None
    assert smallest.program.programs == ((SEND,), (replace(RECV, count=1),))


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        (
            (SEND, replace(RECV, count=1)),
            "device 1, programs[1][0]: expected count 512 of x from device 0, got 1 on "
            "device 1: write the same on both sides",
        ),
        (
            (CALL, replace(CALL, dtype="bfloat16")),
            "device 1, programs[1][0]: expected dtype float32 of all_reduce over 0,1 "
            "reduction=sum on every device, got bfloat16 on device 1: write the same on every "
            "member",
        ),
    ],
)
def test_the_emulator_compares_claims(pair: tuple[Instruction, Instruction], message: str) -> None:
    with pytest.raises(MismatchError) as caught:
        emulate(program((pair[0],), (pair[1],)), [{"x": np.zeros(2)}, {"x": np.zeros(2)}])
    assert str(caught.value) == message


def test_claims_and_lines_survive_the_file() -> None:
    before = program((SEND, CALL), (RECV, CALL))
    assert json.decode(json.encode(before), type=Program) == before
