"""The fewest moves that make a wrong program pass, against trying every move."""

from __future__ import annotations

import random

import pytest
from every_move import fewest_moves, random_program, right
from profiles import IS_LONG, few

from primepar.schedule.program import (
    AllReduce,
    Broadcast,
    Instruction,
    IRecv,
    ISend,
    Program,
    Recv,
    Send,
    Wait,
)
from primepar.schedule.transport import Transport
from primepar.verify.program import verify_program
from primepar.verify.repair.edits import Edit
from primepar.verify.repair.repair import repair, repair_lines


def program(*ranks: tuple[Instruction, ...]) -> Program:
    return Program("primepar-program", 1, len(ranks), ranks)


def moves(wrong: Program) -> tuple[Edit, ...]:
    repaired = repair(wrong)
    assert repaired is not None
    assert repaired.report.verdict == "proved"
    assert right(repaired.program)
    assert repaired.is_smallest
    return repaired.moves


def test_one_of_two_ranks_receives_first() -> None:
    ranks = [(Send(peer=1 - rank, block="x"), Recv(peer=1 - rank, block="y")) for rank in (0, 1)]
    assert moves(program(*ranks)) == (Edit(((0, 1, 0),), before=True),)


def test_one_rank_of_a_ring_receives_first() -> None:
    ring = [
        (Send(peer=(r + 1) % 6, block="x"), Recv(peer=(r - 1) % 6, block="y")) for r in range(6)
    ]
    assert moves(program(*ring)) == (Edit(((0, 1, 0),), before=True),)


def test_every_second_rank_and_every_round_of_a_loop_are_one_move() -> None:
    pairs = [
        (Send(peer=rank ^ 1, block="x"), Recv(peer=rank ^ 1, block="y")) * 3 for rank in range(8)
    ]
    (move,) = moves(program(*pairs))
    assert move.ranks == (0, 2, 4, 6)
    assert len(move.places) == 12


def test_moves_as_text_name_ranks_rounds_and_lines() -> None:
    pairs = program(*(
        (Send(peer=rank ^ 1, block="x", source="a.py:3"), Recv(peer=rank ^ 1, block="y")) * 2
        for rank in range(4)
    ))  # fmt: skip
    repaired = repair(pairs)
    assert repaired is not None
    assert list(repair_lines(pairs, repaired)) == [
        "on ranks 0,2, in each of 2 rounds: move (recv y <- 1) before (send x -> 1) at a.py:3"
    ]


def test_two_groups_whose_calls_are_swapped_on_one_rank() -> None:
    small, large = AllReduce(group=(0, 1), block="a"), AllReduce(group=(0, 1, 2), block="b")
    (move,) = moves(program((small, large), (large, small), (large,)))
    assert move.places == ((0, 1, 0),)


def test_two_calls_of_one_group_that_do_not_agree() -> None:
    reduce, cast = AllReduce(group=(0, 1), block="a"), Broadcast(group=(0, 1), block="c", root=0)
    assert len(moves(program((reduce, cast), (cast, reduce)))) == 1


def test_data_that_must_arrive_first_is_not_passed() -> None:
    forward = tuple((Recv(peer=1 - r, block="x"), Send(peer=1 - r, block="x")) for r in (0, 1))
    assert repair(program(*forward)) is None


def test_a_post_and_its_wait_keep_their_order() -> None:
    posts = (IRecv(peer=1, block="x", request="r"), Wait("r"), Send(peer=1, block="y"))
    (move,) = moves(program(posts, (Recv(peer=0, block="y"), Send(peer=0, block="x"))))
    assert move.places == ((0, 2, 1),)


def test_the_order_of_a_communicator_is_repaired_where_rendezvous_passes() -> None:
    """Posts of one communicator run in their order: head-on sends hang, though both are posted."""
    transport = Transport(0, "communicator")
    lists = program(*(
        (
            ISend(peer=1 - rank, block="x", request="s"),
            IRecv(peer=1 - rank, block="y", request="r"),
            Wait("s"),
            Wait("r"),
        )
        for rank in (0, 1)
    ))  # fmt: skip
    assert moves(lists) == ()
    repaired = repair(lists, transport)
    assert repaired is not None
    assert len(repaired.moves) == 1
    assert verify_program(repaired.program, transport=transport).verdict == "proved"
    assert verify_program(lists, transport=transport).verdict == "refuted"


def test_what_is_right_needs_no_move() -> None:
    assert moves(program((Send(peer=1, block="x"),), (Recv(peer=0, block="x"),))) == ()


@few
@pytest.mark.parametrize("seed", range(1_000 if IS_LONG else 60))
def test_no_fewer_moves_are_enough(seed: int) -> None:
    """All orders that one or two moves of single instructions reach are tried by the explorer."""
    wrong = random_program(random.Random(seed))
    fewest, repaired = fewest_moves(wrong), repair(wrong)
    if repaired is not None:
        assert right(repaired.program)
    if fewest is not None:
        assert repaired is not None
        assert len(repaired.moves) <= fewest
