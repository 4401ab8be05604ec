"""Layouts and the programs between them."""

from __future__ import annotations

import pytest

from primepar.errors import SequenceError
from primepar.partition import parse_sequence
from primepar.schedule import Layout, Movement, redistribution
from primepar.schedule.lowering import layout
from primepar.schedule.program import IRecv, ISend


def test_a_layout_in_finer_blocks_holds_the_same() -> None:
    coarse = Layout((1, 2), (((0, 0),), ((0, 1),)))
    fine = coarse.refined((2, 4))
    assert fine.held[1] == ((0, 2), (0, 3), (1, 2), (1, 3))


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


def test_a_block_that_lies_nowhere_cannot_be_brought() -> None:
    with pytest.raises(SequenceError) as error:
        redistribution(Layout((2,), (((0,),), ((0,),))), Layout((2,), (((1,),), ((0,),))))
    assert str(error.value) == (
        "redistribution: expected block (1,) on some device, got it on none"
    )
