"""Lowering at scale: the same programs as ever, and work that grows with the instructions alone."""

from __future__ import annotations

from hashlib import sha256
from itertools import product

import pytest
from conftest import Golden
from executed import executed
from profiles import few

from primepar.errors import SequenceError
from primepar.partition import PRIMITIVES, parse_sequence
from primepar.schedule import lower
from primepar.schedule.operators import PHASES
from primepar.schedule.program_file import program_json

COMPOSED = ("", "P4x4", "S4x4", "K,P2x2", "P2x2,N", "P2x2,P2x2", "K,N", "N,M", "M,B,N,K", "Ks,Ns",
            "M,Ks", "K,S2x2", "S2x2,K", "P2x2,S2x2", "S2x2,P2x2", "P2x2,K,N", "B,P2x2,M",
            "C2x2x2,M", "K,D2x2x2", "Os2x2,P2x2", "M4,Is2x2", "N,Ws3x3")  # fmt: skip
SINGLE = tuple((phase,) for phase in PHASES)
MOST_APART = 4
"""Devices up to which a sequence is lowered phase by phase too."""


def one_of_each() -> list[str]:
    """Every registered primitive on its meshes of 2 to 9 devices."""
    sequences = []
    for primitive in (known() for known in PRIMITIVES.values()):
        for sides in product((1, 2, 3, 4), repeat=len(primitive.side_names)):
            text = primitive.text(sides)
            try:
                sequence = parse_sequence(text)
            except SequenceError:
                continue
            sequences += [text] if 2 <= sequence.ranks <= 9 else []
    return sequences


def test_the_lowered_programs_are_the_same_to_the_byte(golden: Golden) -> None:
    lines = []
    for text in (*one_of_each(), *COMPOSED):
        sequence = parse_sequence(text)
        for phases in (PHASES, *(SINGLE if sequence.ranks <= MOST_APART else ())):
            program = program_json(lower(sequence, phases=phases))
            digest = sha256(program.encode()).hexdigest()[:16]
            lines.append(f"{digest} {'/'.join(phases)} {text}")
    golden("lowered-programs", "\n".join(lines))


@few
@pytest.mark.parametrize(
    ("small", "large"),
    [("P2x2", "P5x5"), ("S2x2", "S5x5"), ("K2,P2x2", "K12,P2x2"), ("N4", "N32")],
)
def test_work_per_instruction_does_not_grow_with_the_mesh(small: str, large: str) -> None:
    def work(text: str) -> float:
        sequence = parse_sequence(text)
        programs = []
        count = executed(lambda: programs.append(lower(sequence)))
        return count / sum(map(len, programs[0].programs))

    assert work(large) < 1.15 * work(small)
