"""Proofs of programs at scale: work that grows with the instructions alone, and short questions."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
from executed import executed
from profiles import few

from benchmarks.programs import cannon
from primepar.partition import parse_sequence
from primepar.schedule import Program, lower
from primepar.verify import verify_program


def lowered(text: str) -> Program:
    return lower(parse_sequence(text), phases=("forward",))


@few
@pytest.mark.parametrize(
    ("small", "large"),
    [
        (lambda: cannon(4), lambda: cannon(7)),
        (lambda: lowered("M2,P3x3"), lambda: lowered("M12,P3x3")),
        (lambda: lowered("K16"), lambda: lowered("K128")),
        (lambda: lowered("S2x2"), lambda: lowered("S5x5")),
    ],
    ids=["Cannon", "messages", "one step", "SUMMA"],
)
def test_work_per_instruction_does_not_grow_with_the_mesh(
    small: Callable[[], Program], large: Callable[[], Program]
) -> None:
    def work(program: Program) -> float:
        count = executed(lambda: verify_program(program))
        return count / sum(map(len, program.programs))

    assert work(large()) < 1.1 * work(small())


def test_the_collector_runs_again_after_a_proof_and_stays_off_where_it_was() -> None:
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            verify_program(cannon(2))
            assert gc.isenabled() == enabled
        finally:
            gc.enable()
