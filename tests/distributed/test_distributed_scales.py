"""Scales in the executor: applied once, in place, and observed by `checks.conform`."""

from __future__ import annotations

import pytest
import torch
from test_distributed_executor import SETTINGS, alone, mesh, run

from primepar.distributed import Executor
from primepar.errors import ConformanceError
from primepar.schedule.program import AllReduce, Compute, Instruction, Program, Wait
from primepar.schedule.signature import Signature

SUMS = Compute(("a[0]", "b[0]"), "c[0]", scale="1/4")
LATER = Compute(("a[0]", "b[0]"), "c[0]", scale="1/2")
TRIPLE = AllReduce((0,), block="c[0]", scale="3")


@pytest.mark.parametrize(
    ("instructions", "expected"),
    [
        ((SUMS,), 2),
        ((SUMS, LATER), 6),
        ((SUMS, TRIPLE), 6),
        ((SUMS, AllReduce((0,), block="c[0]", scale="3", request="r"), LATER, Wait("r")), 18),
    ],
)
def test_a_sum_is_multiplied_once(instructions: tuple[Instruction, ...], expected: float) -> None:
    program = alone(*instructions, initial=("a[0]", "b[0]"))
    assert run(program, a=3, b=5) == {"a": 3, "b": 5, "c": expected}


def with_kernel(begun: bool) -> Program:
    """The fan-in of two blocks by its kernel, perhaps into a block that is there."""
    phases = {"sum": Signature(("a[M]", "b[M]"), "c[M]", kernel="sum.fan-in")}
    node = Compute(("a[0]", "b[0]"), "c[0]", "sum", {"M": 0}, scale="1/4")
    begin = (Compute(("a[0]",), "c[0]"),) if begun else ()
    return alone(*begin, node, initial=("a[0]", "b[0]"), phases=phases)


def test_conformance_names_a_scale_that_was_not_proved() -> None:
    executed = alone(SUMS, initial=("a[0]", "b[0]"))
    proved = alone(Compute(SUMS.reads, "c[0]", scale="1/2"), initial=("a[0]", "b[0]"))
    blocks = {f"{name}[0]": torch.ones(2, dtype=torch.float64) for name in "ab"}
    Executor(mesh(), executed, proved=executed)(dict(blocks))
    with pytest.raises(ConformanceError) as caught:
        Executor(mesh(), executed, proved=proved)(dict(blocks))
    assert str(caught.value) == (
        "rank 0, instruction 0: expected add c[0] += 1/2 * (a[0] + b[0]), as proved, got scale "
        "0.25: the executor does not run the list that was proved"
    )


@pytest.mark.parametrize("executed", [TRIPLE, AllReduce((0,), block="c[0]")])
def test_conformance_names_a_missing_and_a_strange_scale(executed: AllReduce) -> None:
    other = AllReduce((0,), block="c[0]") if executed is TRIPLE else TRIPLE
    programs = [alone(node, initial=("c[0]",)) for node in (executed, other)]
    with pytest.raises(ConformanceError) as caught:
        Executor(mesh(), programs[0], proved=programs[1])({"c[0]": torch.ones(2).double()})
    got = "scale 3.0" if executed is TRIPLE else "no call"
    assert f"as proved, got {got}: the executor" in str(caught.value)


@pytest.mark.parametrize("begun", [False, True])
def test_the_result_of_a_kernel_is_multiplied_once(begun: bool) -> None:
    program = with_kernel(begun)
    blocks = {"a[0]": torch.full((2,), 3.0).double(), "b[0]": torch.full((2,), 5.0).double()}
    result = Executor(mesh(), program, SETTINGS, proved=program)(blocks)
    assert result["c[0]"].tolist() == [2 + 3 * begun] * 2
