"""Golden text of every schedule: what moves at each step, and the program of every rank."""

from __future__ import annotations

import pytest
from conftest import Golden

from primepar.partition import parse_sequence
from primepar.schedule import Movement, Sequence, lower, program_text
from primepar.schedule.movement import Hop
from primepar.schedule.operators import block_name

TEXTS = ("B2", "B3", "M2", "M3", "N2", "N3", "K2", "K3", "P2x2", "P3x3",
         "M2,K2", "K2,P2x2", "N2,P2x2", "P2x2,N2")  # fmt: skip


def movement_text(sequence: Sequence) -> str:
    """One line for each hop and reduction, under the phase and the step."""
    lines = []
    for phase, moved in Movement(sequence).phases.items():
        for step in range(sequence.steps):
            hops = [*moved.operands[step], *moved.partials[step]]
            lines.append(f"{phase} t={step}" + ("" if hops else ": nothing moves"))
            lines += [f"  {hop_text(sequence, hop)}" for hop in hops]
        for reduction in moved.reductions:
            block = block_name(reduction.tensor, reduction.index)
            ranks = ", ".join(map(str, reduction.ranks))
            lines.append(f"  all-reduce {block} over devices {ranks}")
    return "\n".join(lines)


def hop_text(sequence: Sequence, hop: Hop) -> str:
    block = block_name(hop.tensor, hop.index)
    return f"{block:8} {sequence.place(hop.source)} -> {sequence.place(hop.target)}"


@pytest.mark.parametrize("text", TEXTS)
def test_the_derived_movement_is_as_it_was(text: str, golden: Golden) -> None:
    golden(f"movement/{text}", movement_text(parse_sequence(text)))


@pytest.mark.parametrize("text", TEXTS)
def test_the_lowered_program_is_as_it_was(text: str, golden: Golden) -> None:
    golden(f"program/{text}", program_text(lower(parse_sequence(text))))
