"""Golden text of every schedule: what moves at each step, and the program of every rank."""

from __future__ import annotations

import pytest
from conftest import Golden

from primepar.partition import parse_sequence
from primepar.schedule import Movement, Sequence, lower, program_text
from primepar.schedule.movement import Hop, Return
from primepar.schedule.operators import block_name

TEXTS = ("B2", "B3", "M2", "M3", "N2", "N3", "K2", "K3", "P2x2", "P3x3",
         "M2,K2", "K2,P2x2", "N2,P2x2", "P2x2,N2",
         "Ks2", "Ns2", "S2x2", "S3x3", "S2x3", "S2x4", "T2x2x2", "C2x2x2", "Cr2x2x2", "D2x2x2",
         "Os2x2", "Is2x2", "Ws2x2", "Is3x3", "M2,Ks2", "P2x2,Ns2")  # fmt: skip


def movement_text(sequence: Sequence) -> str:
    """One line for each hop and each sum that is finished, under the phase and the step."""
    lines = []
    for phase, moved in Movement(sequence).phases.items():
        if moved.prologue:
            lines.append(f"{phase} before t=0")
            lines += [f"  {hop_text(sequence, hop)}" for hop in moved.prologue]
        for step in range(sequence.steps):
            hops = [*moved.operands[step], *moved.partials[step]]
            sums = [summed for summed in moved.returns[step] if summed.ranks != summed.homes]
            lines.append(f"{phase} t={step}" + ("" if hops or sums else ": nothing moves"))
            lines += [f"  {hop_text(sequence, hop)}" for hop in hops]
            lines += [f"  {return_text(sequence, summed)}" for summed in sums]
        for reduction in (summed for summed in moved.reductions if summed.ranks == summed.homes):
            block = block_name(reduction.tensor, reduction.index)
            ranks = ", ".join(map(str, reduction.ranks))
            lines.append(f"  all-reduce {block} over devices {ranks}")
    return "\n".join(lines)


def return_text(sequence: Sequence, reduction: Return) -> str:
    """A finished sum: the devices of its partial sums, and those where it stays."""
    taken = ", ".join(map(str, reduction.ranks))
    homes = "; ".join(sequence.place(home) for home in reduction.homes)
    return f"{block_name(reduction.tensor, reduction.index):8} of devices {taken} stays on {homes}"


def hop_text(sequence: Sequence, hop: Hop) -> str:
    block = block_name(hop.tensor, hop.index)
    return f"{block:8} {sequence.place(hop.source)} -> {sequence.place(hop.target)}"


@pytest.mark.parametrize("text", TEXTS)
def test_the_derived_movement_is_as_it_was(text: str, golden: Golden) -> None:
    golden(f"movement/{text}", movement_text(parse_sequence(text)))


@pytest.mark.parametrize("text", TEXTS)
def test_the_lowered_program_is_as_it_was(text: str, golden: Golden) -> None:
    golden(f"program/{text}", program_text(lower(parse_sequence(text))))
