"""Small wrong programs, and the whole message with which the emulator refuses them."""

from __future__ import annotations

from typing import Any

import pytest

from primepar.errors import PrimeParError
from primepar.reference import emulate
from primepar.reference.check import memories
from primepar.schedule.program import Compute, Instruction, Program

GRID = {"forward": {"M": 1, "N": 2, "K": 1}}
OPERANDS = ("I[0,0]", "I[0,1]", "W[0,0]", "W[1,0]")


def ranks(*lists: tuple[Instruction, ...], **fields: Any) -> Program:
    """A program of these lists."""
    return Program("primepar-program", 1, len(lists), lists, **fields)


def product(n: int, into: str = "O[0,0]", *reads: str) -> Compute:
    """Forward sub-operator n of a grid that cuts N only."""
    return Compute(reads or (f"I[0,{n}]", f"W[{n},0]"), into, "forward", {"M": 0, "N": n, "K": 0})


def refused(program: Program, kind: type[PrimeParError], message: str, held: Any = None) -> None:
    """A program does not run on what it is given, by default on the memories of `check`."""
    with pytest.raises(PrimeParError) as caught:
        emulate(program, memories(program) if held is None else held)
    assert (type(caught.value), str(caught.value)) == (kind, message)
