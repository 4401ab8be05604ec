"""Two names for one place in the result of a collective: refuted by all readers, and certified."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace
from oracle.explore import explore

from primepar.certify.program import certify_program
from primepar.errors import ClaimError, InFlightError
from primepar.reference import emulate
from primepar.schedule.program import AllGather, AllToAll, Instruction, Program, Wait
from primepar.schedule.signature import Tensor
from primepar.verify.certificate.program import certificate
from primepar.verify.program import verify_program

TENSORS = {
    "A": Tensor(((0, 2, 4),)),
    "B": Tensor(((0, 1, 3, 4),), of="A"),
    "C": Tensor(((0, 2, 4),), of="A"),
    "E": Tensor(((0, 2, 4),)),
}
GATHER = "all_gather A[0] -> A[0] B[1] over 0,1"


def program(*nodes: Instruction) -> Program:
    """The same instructions on two ranks."""
    return Program("primepar-program", 1, 2, (nodes, nodes), tensors=TENSORS)


def gather(*blocks: str, request: str | None = None) -> Program:
    call = AllGather((0, 1), block="A[0]", blocks=blocks, request=request)
    return program(call, *([Wait(request)] if request else []))


def to_all(*into: str) -> Program:
    return program(AllToAll((0, 1), blocks=("A[0]", "A[0]"), into=into))


def emulated(given: Program) -> None:
    emulate(given, [{"A[0]": np.ones(2)}] * 2)


@pytest.mark.parametrize(
    "given",
    [
        gather("A[0]", "B[1]"),
        gather("A[0]", "C[0]"),
        gather("A[0]", "A[00]"),
        gather("B[1]", "C[1]"),
        gather("A[0]", "B[1]", request="a"),
        to_all("C[0]", "A[0]"),
    ],
    ids=["part", "whole", "digits", "in both", "posted", "all to all"],
)
def test_names_of_one_place_are_refuted_by_all(given: Program) -> None:
    report = verify_program(given)
    assert [each.name for each in report.properties if each.verdict == "refuted"] == ["races"]
    assert explore(given, every=True).failed == {"races"}
    with pytest.raises(InFlightError):
        emulated(given)
    found = certificate(given, report)
    certify_program(found, given)
    with pytest.raises(ClaimError):
        certify_program(replace(found, refuted=()), given)


@pytest.mark.parametrize(
    "given",
    [gather("A[0]", "A[1]"), gather("A[0]", "C[1]"),
     gather("A[0]", "E[0]"), gather("A[0]", "X"), gather("Y", "X"), to_all("A[0]", "A[1]")],
    ids=["one cut", "apart", "other tensor", "no place", "none", "all to all"],
)  # fmt: skip
def test_names_of_places_apart_are_right_for_all(given: Program) -> None:
    report = verify_program(given)
    assert report.verdict == "proved"
    assert explore(given, every=True).failed == frozenset()
    certify_program(certificate(given, report), given)


def test_messages_name_both_blocks_and_what_to_write() -> None:
    report = verify_program(gather("A[0]", "B[1]"))
    assert report["races"].counterexample == (
        f"rank 0, instruction 0 ({GATHER}): expected disjoint blocks from one collective, "
        "got A[0] and B[1], which share elements of A: name blocks of one cut"
    )
    with pytest.raises(InFlightError) as caught:
        emulated(gather("A[0]", "B[1]"))
    assert str(caught.value) == (
        "device 0, programs[0][0]: expected disjoint blocks from one collective, got A[0] "
        "and B[1], which share elements of A: name blocks of one cut"
    )
    given = gather("A[0]", "B[1]")
    honest = certificate(given, report)
    names = tuple(result.name for result in report.properties)
    with pytest.raises(ClaimError) as refused:
        certify_program(replace(honest, refuted=(), proved=names), given)
    assert str(refused.value) == "proved: expected nothing wrong, got races refuted"
