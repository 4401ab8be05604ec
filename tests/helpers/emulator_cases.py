"""Small wrong programs, run on blocks of ones, and the whole message that refuses them."""

from __future__ import annotations

import numpy as np
import pytest

from primepar.errors import (
    EmulationError,
)
from primepar.reference import emulate
from primepar.schedule.effects import host_blocks, initial_blocks
from primepar.schedule.operators import Dim, Phase
from primepar.schedule.program import (
    Compute,
    Instruction,
    Program,
)

Names = tuple[str, ...]
GRID: dict[Phase, dict[Dim, int]] = {"forward": {"M": 1, "N": 2, "K": 1}}
OPERANDS = ("I[0,0]", "I[0,1]", "W[0,0]", "W[1,0]")


def refusal(
    *ranks: tuple[Instruction, ...],
    initial: tuple[Names, ...] | None = None,
    final: tuple[Names, ...] | None = None,
    grid: dict[Phase, dict[Dim, int]] | None = None,
) -> EmulationError:
    """Run a program on blocks of ones and return what refuses it."""
    program = Program(
        "primepar-program", 1, len(ranks), ranks, grid=grid, initial=initial, final=final
    )
    names = zip(initial_blocks(program), host_blocks(program), strict=True)
    memories = [{name: np.ones((2, 2)) for name in (*own, *host)} for own, host in names]
    with pytest.raises(EmulationError) as caught:
        emulate(program, memories)
    return caught.value


def product(n: int, into: str = "O[0,0]", *reads: str) -> Compute:
    """Forward sub-operator n of a grid that cuts N only."""
    return Compute(reads or (f"I[0,{n}]", f"W[{n},0]"), into, "forward", {"M": 0, "N": n, "K": 0})


def refused(error: EmulationError, kind: type[EmulationError], message: str) -> None:
    assert type(error) is kind
    assert str(error) == message
