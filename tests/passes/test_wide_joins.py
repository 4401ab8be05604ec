"""Parts of sums in float32 that are joined into a block in bfloat16: copied, and rounded once."""

from __future__ import annotations

import pytest
import torch

from primepar.distributed import Executor, Mesh
from primepar.distributed.runtime.joins import LaterJoin, later_joins
from primepar.distributed.runtime.shapes import Shapes
from primepar.partition import parse_sequence
from primepar.schedule.program import Compute, Cut, Free, Instruction, Join, Program
from primepar.schedule.signature import Tensor

HALVES, OTHERS = ("halves[0]", "halves[1]"), ("others[0]", "others[1]")
FINE = 1 + 2**-10
"""A number of float32 that bfloat16, with 8 significant bits, rounds to 1."""


def program(
    *nodes: Instruction, initial: tuple[str, ...] = HALVES, wide: tuple[str, ...] = ()
) -> Program:
    """A tensor of four elements under six names; the blocks of those in `wide` are of sums."""
    names = ("whole", "given", "again", "total", "halves", "others")
    tensors = {
        name: Tensor(
            ((0, 2, 4) if name in ("halves", "others") else (0, 4),),
            of=None if name == "whole" else "whole",
            wide=name in wide,
        )
        for name in names
    }
    return Program("primepar-program", 1, 1, (nodes,), initial=(initial,), tensors=tensors)


def run(given: Program, **blocks: torch.Tensor) -> dict[str, torch.Tensor]:
    execute = Executor(Mesh(parse_sequence(""), dtype=torch.bfloat16), given)
    named = {f"{name[:-1]}[{name[-1]}]": block for name, block in blocks.items()}
    for _ in range(2):
        made = execute(dict(named))
    return made


SUMS = tuple(Compute((half,), other) for half, other in zip(HALVES, OTHERS, strict=True))
JOINED = Join(OTHERS, "whole[0]", in_place=True)


@pytest.mark.parametrize("wide", [("others",), ("whole",), ("others", "whole"), ()])
def test_parts_are_made_side_by_side_unless_one_is_of_another_dtype(wide: tuple[str, ...]) -> None:
    made = program(*SUMS, JOINED, wide=wide)
    joins = later_joins(made.programs[0], 0, HALVES, Shapes(made), 32)
    alike = {(place, name): LaterJoin(2, "whole[0]") for place, name in enumerate(OTHERS)}
    assert joins == ({} if len(wide) == 1 else alike)
    # With 16 bytes an element the second part would begin in the middle of a line of 64.
    assert later_joins(made.programs[0], 0, HALVES, Shapes(made), 16) == {}


def test_one_wide_part_is_enough_to_copy_all() -> None:
    parts = (OTHERS[0], "halves[1]")
    made = program(SUMS[0], Join(parts, "whole[0]"), wide=("others",))
    assert later_joins(made.programs[0], 0, (), Shapes(made), 32) == {}
    blocks = run(made, halves0=torch.ones(2).bfloat16(), halves1=torch.full((2,), 3.0).bfloat16())
    assert blocks["whole[0]"].dtype == torch.bfloat16
    assert blocks["whole[0]"].tolist() == [1, 1, 3, 3]


def test_wide_sums_are_rounded_when_they_are_joined() -> None:
    """A sum of 512 ones in bfloat16 ends at 256, as 257 is rounded to 256."""
    sums = tuple(Compute((half,) * 512, other) for half, other in zip(HALVES, OTHERS, strict=True))
    ones = {name: torch.ones(2).bfloat16() for name in ("halves0", "halves1")}
    for wide, total in ((("others",), 512), ((), 256)):
        blocks = run(program(*sums, JOINED, wide=wide), **ones)
        assert blocks.keys() == {*HALVES, "whole[0]"}
        assert blocks["whole[0]"].dtype == torch.bfloat16
        assert blocks["whole[0]"].tolist() == [total] * 4


@pytest.mark.parametrize("stays", [True, False])
def test_wide_parts_are_copied_into_a_narrow_whole(stays: bool) -> None:
    made = program(
        Compute(("given[0]",), "again[0]"),
        Cut("again[0]", HALVES, in_place=True),
        Join(HALVES, "whole[0]"),
        Compute(("whole[0]",), "total[0]"),
        *[Free("whole[0]")] * (not stays),
        initial=("given[0]",),
        wide=("given", "again", "halves", "total"),
    )
    blocks = run(made, given0=torch.full((4,), FINE))
    assert [blocks[half].tolist() for half in HALVES] == [[FINE] * 2] * 2
    assert blocks["total[0]"].dtype == torch.float32
    assert blocks["total[0]"].tolist() == [1.0] * 4, "rounded in the whole"
    assert not stays or blocks["whole[0]"].dtype == torch.bfloat16


@pytest.mark.parametrize(("wide", "dtype"), [("halves", torch.float32), ("again", torch.bfloat16)])
def test_a_part_of_another_dtype_is_a_copy(wide: str, dtype: torch.dtype) -> None:
    made = program(
        Compute(("given[0]",), "again[0]"),
        Cut("again[0]", HALVES, in_place=True),
        initial=("given[0]",),
        wide=(wide,),
    )
    blocks = run(made, given0=torch.full((4,), 2.0).bfloat16())
    assert [blocks[half].dtype for half in HALVES] == [dtype] * 2
    assert [blocks[half].tolist() for half in HALVES] == [[2.0] * 2] * 2
