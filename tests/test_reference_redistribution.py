"""Redistribution programs, run on emulated devices, take a tensor from any layout to any other."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from primepar.partition import parse_sequence
from primepar.reference import emulate, gather, scatter
from primepar.reference.executor import Emulation
from primepar.schedule import Movement, redistribution
from primepar.schedule.layout import Layout, common_grid
from primepar.schedule.lowering import layout
from primepar.schedule.operators import Dim

ON_FOUR = ("P2x2", "M4", "K4", "N4", "M2,K2", "K2,M2", "M2,N2", "N2,K2")
ON_SIX = ("M6", "K6", "M2,K3", "K3,M2", "M3,N2")


def source(text: str) -> Layout:
    """Where the output of an operator lies after forward."""
    return layout(Movement(parse_sequence(text)), "forward", "O", last=True)


def target(text: str) -> Layout:
    """Where the input of an operator must lie before forward."""
    return layout(Movement(parse_sequence(text)), "forward", "I", last=False)


def redistribute(one: Layout, other: Layout) -> tuple[Emulation, int]:
    """Run it on a tensor with one element in each block, and check where every element ends."""
    grid = common_grid(one, other)
    slices: dict[Dim, int] = {"M": grid[0], "K": grid[1]}
    O_MK = np.arange(float(grid[0] * grid[1])).reshape(grid)
    program = redistribution(one, other)
    assert program.initial is not None
    assert program.final is not None
    run = emulate(program, scatter(program.initial, slices, {"O": O_MK}))
    assert np.array_equal(gather("O", program.final, run.memories, slices), O_MK)
    for names, held in zip(program.final, run.memories, strict=True):
        assert sorted(held) == sorted(names)
    return run, O_MK.size


@pytest.mark.parametrize(
    ("one", "other"), [*product(ON_FOUR, repeat=2), *product(ON_SIX, repeat=2)]
)
def test_every_layout_is_reached_from_every_other(one: str, other: str) -> None:
    redistribute(source(one), target(other))


@pytest.mark.parametrize("text", [*ON_FOUR, *ON_SIX])
def test_nothing_moves_where_the_layouts_agree(text: str) -> None:
    run, _ = redistribute(source(text), source(text))
    assert run.sent == [0] * len(run.sent)


@pytest.mark.parametrize("side", [2, 3, 4, 5])
def test_between_two_primepar_operators_all_but_one_block_in_each_row_moves(side: int) -> None:
    text = f"P{side}x{side}"
    run, elements = redistribute(source(text), target(text))
    assert sum(run.sent) == elements * (1 - Fraction(1, side))
