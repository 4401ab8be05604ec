"""Layouts and the programs between them."""

from __future__ import annotations

from fractions import Fraction

import pytest

from primepar.errors import SequenceError
from primepar.partition import parse_sequence
from primepar.schedule import Layout, Movement, redistribution
from primepar.schedule.layout import Cells
from primepar.schedule.lowering import layout
from primepar.schedule.program import IRecv, ISend

HALVES = Layout((1, 2), (((0, 0),), ((0, 1),), ((0, 1),)))
THIRDS = Layout((1, 3), (((0, 0),), ((0, 1),), ((0, 2),)))


def cuts(text: str) -> tuple[Fraction, ...]:
    return tuple(map(Fraction, text.split()))


def test_two_layouts_meet_in_cells_between_the_cuts_of_either() -> None:
    cells = Cells.of(HALVES, THIRDS)
    assert cells.cuts == (cuts("0 1"), cuts("0 1/3 1/2 2/3 1"))
    assert cells.grid == (1, 6)
    assert [cells.held(HALVES, rank) for rank in (0, 1)] == [((0, 0), (0, 1)), ((0, 2), (0, 3))]
    assert [cells.held(THIRDS, rank) for rank in (0, 1)] == [((0, 0),), ((0, 1), (0, 2))]
    assert [cells.count((0, segment)) for segment in range(4)] == [2, 1, 1, 2]
    assert cells.parts == 6


def test_a_cell_has_its_place_in_the_whole_and_in_what_a_rank_holds() -> None:
    pieces = Cells.of(HALVES, THIRDS).pieces(THIRDS, 1, (2, 12))
    assert pieces == {
        (0, 1): ((slice(0, 2), slice(4, 6)), (slice(0, 2), slice(0, 2))),
        (0, 2): ((slice(0, 2), slice(6, 8)), (slice(0, 2), slice(2, 4))),
    }
    assert [piece.shape for piece in pieces.values()] == [(2, 2)] * 2


def test_blocks_that_are_not_adjacent_are_joined_in_their_order() -> None:
    strided = Layout((4, 1), (((0, 0), (2, 0)), ((1, 0), (3, 0))))
    pieces = Cells.of(strided).pieces(strided, 1, (8, 1))
    assert [piece.whole[0] for piece in pieces.values()] == [slice(2, 4), slice(6, 8)]
    assert [piece.local[0] for piece in pieces.values()] == [slice(0, 2), slice(2, 4)]


def test_slices_that_no_device_holds_apart_are_not_cut() -> None:
    quarters = Layout((4,), (((0,), (1,)), ((2,),), ((3,),)))
    assert quarters.cuts(0) == cuts("0 1/2 3/4 1")
    cells = Cells.of(quarters)
    assert [cells.held(quarters, rank) for rank in range(3)] == [((0,),), ((1,),), ((2,),)]


def test_one_device_sends_another_one_message() -> None:
    turned = Layout((1, 3), (((0, 2),), ((0, 0),), ((0, 1),)))
    program = redistribution(HALVES, turned)
    sends = [[(node.peer, node.block) for node in rank if isinstance(node, ISend)]
             for rank in program.programs]  # fmt: skip
    assert sends == [[(1, "O[0,0]"), (2, "O[0,1]")], [(0, "O[0,3]")], []]


def test_primepar_s_output_reaches_the_next_input_in_one_hop_of_all_but_one_column() -> None:
    movement = Movement(parse_sequence("P3x3"))
    output = layout(movement, "forward", "O", last=True)
    following = layout(movement, "forward", "I", last=False)
    program = redistribution(output, following)
    sends = [sum(isinstance(node, ISend) for node in rank) for rank in program.programs]
    assert sorted(sends) == [0, 0, 0, 1, 1, 1, 1, 1, 1]


def test_splitting_a_whole_tensor_moves_nothing() -> None:
    whole = Layout((1, 1), (((0, 0),), ((0, 0),)))
    split = Layout((1, 2), (((0, 0),), ((0, 1),)))
    assert not any(
        isinstance(node, ISend | IRecv)
        for rank in redistribution(whole, split).programs
        for node in rank
    )


def test_gathering_takes_every_missing_block_once() -> None:
    split = Layout((1, 3), (((0, 0),), ((0, 1),), ((0, 2),)))
    whole = Layout((1, 1), (((0, 0),),) * 3)
    program = redistribution(split, whole)
    for rank, instructions in enumerate(program.programs):
        received = [node.block for node in instructions if isinstance(node, IRecv)]
        assert sorted(received) == sorted(f"O[0,{n}]" for n in range(3) if n != rank)


def test_replicas_share_the_work_of_sending() -> None:
    source = Layout((2, 1), (((0, 0),), ((0, 0),), ((1, 0),), ((1, 0),)))
    target = Layout((2, 1), (((1, 0),), ((1, 0),), ((0, 0),), ((0, 0),)))
    program = redistribution(source, target)
    assert all(sum(isinstance(n, ISend) for n in rank) == 1 for rank in program.programs)


def test_peers_along_a_dim_hold_each_of_its_slices_once() -> None:
    movement = Movement(parse_sequence("N,P2x2"))
    output = layout(movement, "forward", "O", last=True)
    assert sorted(output.peers_along(1)) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert sorted(output.peers_along(0)) == [(0, 2), (1, 3), (4, 6), (5, 7)]


def test_layouts_of_other_meshes_do_not_meet() -> None:
    with pytest.raises(SequenceError) as error:
        redistribution(Layout((1,), (((0,),),)), Layout((1,), (((0,),), ((0,),))))
    assert str(error.value) == (
        "redistribution: expected layouts over the same devices, got 1 and 2: give both operators "
        "sequences for one mesh"
    )


def test_a_block_that_no_device_holds_cannot_be_sent() -> None:
    with pytest.raises(SequenceError) as error:
        redistribution(Layout((2,), (((0,),), ((0,),))), Layout((2,), (((1,),), ((0,),))))
    assert str(error.value) == (
        "redistribution: expected block (1,) on some device, got it on none"
    )
