"""Redistribution programs, run on emulated devices, take a tensor from any layout to any other."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import product
from math import lcm

import numpy as np
import pytest
from hypothesis import given
from layout_cases import pairs
from profiles import few

from primepar.partition import parse_sequence
from primepar.reference import emulate
from primepar.reference.emulator.tensors import Memory
from primepar.reference.oracle.layers import Array
from primepar.schedule import Movement, Program, redistribution
from primepar.schedule.layout import Cells, Layout, moved
from primepar.schedule.lowering import layout
from primepar.schedule.operators import Index, block_name, parse_block
from primepar.schedule.program import IRecv, ISend

ON_FOUR = ("P2x2", "M4", "K4", "N4", "M2,K2", "K2,M2", "M2,N2", "N2,K2")
ON_SIX = ("M6", "K6", "M2,K3", "K3,M2", "M3,N2")


def source(text: str) -> Layout:
    """The layout of an operator's output after forward."""
    return layout(Movement(parse_sequence(text)), "forward", "O", last=True)


def target(text: str) -> Layout:
    """The layout of an operator's input before forward."""
    return layout(Movement(parse_sequence(text)), "forward", "I", last=False)


def numbered(one: Layout, other: Layout) -> Array:
    """A tensor of the smallest shape that both cut, every element another integer."""
    shape = [lcm(a, b) for a, b in zip(one.grid, other.grid, strict=True)]
    return np.arange(float(np.prod(shape))).reshape(shape)


def cells(one: Layout, other: Layout) -> tuple[list[Memory], list[Memory]]:
    """What every rank holds in one layout and in the other."""
    whole, common = numbered(one, other), Cells.of(one, other)
    before, after = (
        [
            {block_name("O", index): whole[piece.whole]
             for index, piece in common.pieces(layout, rank, whole.shape).items()}
            for rank in range(layout.ranks)
        ]
        for layout in (one, other)
    )  # fmt: skip
    return before, after


def redistribute(one: Layout, other: Layout) -> tuple[list[Fraction], Array]:
    """Elements that every rank sends; every rank must end with its block."""
    before, after = cells(one, other)
    run = emulate(redistribution(one, other), before)
    for got, expected in zip(run.memories, after, strict=True):
        assert got.keys() == expected.keys()
        assert all(np.array_equal(got[name], block) for name, block in expected.items())
    return run.sent, numbered(one, other)


@few
@pytest.mark.parametrize(
    ("one", "other"), [*product(ON_FOUR, repeat=2), *product(ON_SIX, repeat=2)]
)
def test_every_layout_is_reached_from_every_other(one: str, other: str) -> None:
    redistribute(source(one), target(other))


@pytest.mark.parametrize("text", [*ON_FOUR, *ON_SIX])
def test_nothing_moves_where_the_layouts_agree(text: str) -> None:
    sent, _ = redistribute(source(text), source(text))
    assert sent == [0] * len(sent)


@pytest.mark.parametrize("side", [2, 3, 4, 5])
def test_between_two_primepar_operators_all_but_one_block_in_each_row_moves(side: int) -> None:
    text = f"P{side}x{side}"
    sent, whole = redistribute(source(text), target(text))
    assert sum(sent) == whole.size * (1 - Fraction(1, side))


# Any layouts


def missing(one: Layout, other: Layout) -> int:
    """Elements that ranks lack, counted element by element."""
    ranks = zip(*cells(one, other), strict=True)
    return sum(np.setdiff1d(_elements(after), _elements(before)).size for before, after in ranks)


def _elements(memory: Memory) -> Array:
    return np.concatenate([block.reshape(-1) for block in memory.values()])


def check_way(one: Layout, other: Layout) -> Program:
    """What arrives is right, and no more is sent than what each rank lacks."""
    sent, whole = redistribute(one, other)
    assert sum(sent) == missing(one, other) == moved(one, other) * whole.size
    program = redistribution(one, other)
    for instructions, held in zip(program.programs, program.initial or (), strict=True):
        received = [node.block for node in instructions if isinstance(node, IRecv)]
        assert not set(received) & set(held)
        assert len(set(received)) == len(received)
    return program


@given(pairs())
def test_two_devices_of_one_block_each_exchange_one_message_each_way(
    way: tuple[Layout, Layout],
) -> None:
    program = check_way(*way)
    messages = Counter(
        (rank, node.peer)
        for rank, instructions in enumerate(program.programs)
        for node in instructions
        if isinstance(node, ISend)
    )
    assert all(count == 1 for count in messages.values())


@given(pairs(apart=True))
def test_blocks_that_are_not_contiguous_are_moved_too(way: tuple[Layout, Layout]) -> None:
    check_way(*way)


@given(pairs())
def test_no_copy_is_free_while_another_sends_more(way: tuple[Layout, Layout]) -> None:
    cells, (one, other) = Cells.of(*way), way
    sent = [
        [cells.count(index_of(node.block)) for node in instructions if isinstance(node, ISend)]
        for instructions in redistribution(one, other).programs
    ]
    for held, shares in zip(one.held, sent, strict=True):
        copies = [sum(sent[rank]) for rank, blocks in enumerate(one.held) if blocks == held]
        assert sum(shares) - min(shares, default=0) <= min(copies)


def index_of(block: str) -> Index:
    parsed = parse_block(block)
    assert parsed is not None
    return parsed.index
