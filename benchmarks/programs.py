"""Programs of the benchmarks `verify` and `judge`: one family grows in ranks and in steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt

from primepar.models.config import GPTConfig
from primepar.operators import lower_step
from primepar.partition import parse_sequence
from primepar.plan import preset_plan
from primepar.schedule import Program, lower
from primepar.schedule.program import Compute, Group, Instruction, Recv, Send

LARGEST_SIDE = 8
"""Largest side of the mesh of `P` in lowered programs; more ranks are copies that split M."""
LARGEST_STEP = 64
"""Maximum ranks of a training step: its instructions grow as the cube of the mesh's side."""


@dataclass(frozen=True)
class BenchProgram:
    """A program with its name in the table."""

    name: str
    program: Program

    @property
    def instructions(self) -> int:
        """Instructions of all ranks."""
        return sum(map(len, self.program.programs))


def programs(ranks: int) -> Iterator[BenchProgram]:
    """The programs on a square number of ranks."""
    side = isqrt(ranks)
    yield BenchProgram(f"Cannon, {side} x {side} x {side}", cannon(side))
    inner = max(length for length in range(1, LARGEST_SIDE + 1) if side % length == 0)
    copies = f"M{ranks // inner**2}," * (side > inner)
    text = f"{copies}P{inner}x{inner}"
    yield BenchProgram(f"forward of {text}", lower(parse_sequence(text), phases=("forward",)))
    if ranks <= LARGEST_STEP:
        yield BenchProgram("training step of 2 layers", training_step(side))


def training_step(side: int) -> Program:
    """A training step of the smallest GPT of two layers that PrimePar's plan divides."""
    model = GPTConfig(layers=2, hidden=8 * side, heads=side, context=side, vocabulary=side)
    return lower_step(preset_plan("primepar", model, side**2), side, side)


def cannon(side: int) -> Program:
    """Cannon's algorithm on side x side ranks: in each step a product, then one group of messages.

    I moves left along the rows and W up along the columns; both start skewed (Cannon, 1969).
    Messages are grouped as by ncclGroupStart and ncclGroupEnd.
    """
    points = [(r, c) for r in range(side) for c in range(side)]
    i, w, o = (_names(tensor, side) for tensor in "IWO")
    return Program(
        format="primepar-program",
        version=1,
        ranks=side**2,
        programs=tuple(tuple(_cannon_rank(side, r, c, i[r], w, o[r][c])) for r, c in points),
        grid={"forward": {"M": side, "N": side, "K": side}},
        initial=tuple((i[r][(r + c) % side], w[(r + c) % side][c]) for r, c in points),
    )


def _names(tensor: str, side: int) -> list[list[str]]:
    """Names of all blocks of a tensor, each made once."""
    return [[f"{tensor}[{row},{column}]" for column in range(side)] for row in range(side)]


def _cannon_rank(
    side: int, r: int, c: int, i: list[str], w: list[list[str]], o: str
) -> Iterator[Instruction]:
    """`i[n]` is the block of I in the rank's row, `w[n][c]` that of W in its column."""
    left, right = r * side + (c - 1) % side, r * side + (c + 1) % side
    above, below = (r - 1) % side * side + c, (r + 1) % side * side + c
    for t in range(side):
        n, following = (r + c + t) % side, (r + c + t + 1) % side
        yield Compute((i[n], w[n][c]), o, "forward", {"M": r, "N": n, "K": c})
        if t < side - 1:
            along = (Send(left, i[n], 0), Recv(right, i[following], 0))
            down = (Send(above, w[n][c], 1), Recv(below, w[following][c], 1))
            yield Group((*along, *down))
