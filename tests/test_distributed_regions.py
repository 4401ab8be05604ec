"""Blocks side by side: when they are one tensor, one product, one collective."""

from __future__ import annotations

import pytest
from distributed_program import RANKS, run_out_of_order
from distributed_ranks import on_ranks

from primepar.distributed.regions import Region, Window
from primepar.distributed.series import gathers, merged, products, scatters, series_of
from primepar.partition import parse_sequence
from primepar.schedule import lower
from primepar.schedule.program import AllGather, Compute, Free, ReduceScatter

SQUARE = Region("I", (0, 2), (1, 3))


def test_a_rectangle_of_blocks_is_a_region() -> None:
    assert Region.of(("I[2,1]", "I[0,3]", "I[0,1]", "I[2,3]")) == SQUARE
    assert SQUARE.names == ("I[0,1]", "I[0,3]", "I[2,1]", "I[2,3]")
    assert SQUARE.shape((5, 7)) == (10, 14)


@pytest.mark.parametrize(
    "names",
    [
        ("I[0,0]", "I[1,1]"),
        ("I[0,0]", "I[0,0]"),
        ("I[0,0]", "W[0,1]"),
        ("I[0,0]'", "I[0,1]'"),
        ("I[0,0,0]", "I[0,0,1]"),
        ("x", "y"),
    ],
)
def test_other_blocks_are_none(names: tuple[str, ...]) -> None:
    assert Region.of(names) is None


def test_a_window_is_of_blocks_that_adjoin() -> None:
    column, row = SQUARE.window(("I[0,3]", "I[2,3]")), SQUARE.window(("I[2,1]", "I[2,3]"))
    assert column == Window(range(2), range(1, 2))
    assert column.slices((5, 7)) == (slice(0, 10), slice(7, 14))
    assert row == Window(range(1, 2), range(2))
    assert SQUARE.in_one_piece(row)
    assert not SQUARE.in_one_piece(column)
    assert Region("I", (0, 1, 2), (0,)).window(("I[0,0]", "I[2,0]")) is None
    assert SQUARE.window(("O[0,1]",)) is None


def gather(block: str, *blocks: str, request: str | None = None) -> AllGather:
    return AllGather((0, 1), block=block, blocks=blocks, request=request)


def test_gathers_of_one_group_and_tensor_that_fill_whole_rows_are_one() -> None:
    one, other = gather("I[0,0]", "I[0,0]", "I[1,0]"), gather("I[0,1]", "I[0,1]", "I[1,1]")
    found = gathers([one, other, gather("W[0,0]", "W[0,0]", "W[1,0]")], 0)
    assert found == [one, other]
    series = series_of(found, 0)
    assert series is not None
    assert series.region == Region("I", (0, 1), (0, 1))
    assert series.own == ("I[0,0]", "I[0,1]")
    assert series.windows == (Window(range(1), range(2)), Window(range(1, 2), range(2)))


def test_gathers_of_columns_are_none() -> None:
    assert series_of([gather("I[0,0]", "I[0,0]", "I[0,1]")], 0) is None


def test_a_posted_gather_and_one_that_blocks_stay_apart() -> None:
    first = gather("I[0,0]", "I[0,0]", "I[1,0]", request="a")
    assert gathers([first, gather("I[0,1]", "I[0,1]", "I[1,1]")], 0) == [first]


def test_scatters_are_one_over_what_they_free() -> None:
    lines = [
        ReduceScatter((0, 1), blocks=(f"O[0,{k}]", f"O[1,{k}]"), block=f"O[0,{k}]") for k in (0, 1)
    ]
    assert scatters([lines[0], Free("O[1,0]"), lines[1], Free("O[1,1]")], 0) == lines


def test_products_are_one_along_the_dims_whose_blocks_all_join() -> None:
    instructions = lower(parse_sequence("Ks3"), phases=("forward",)).programs[0]
    start = next(at for at, node in enumerate(instructions) if isinstance(node, Compute))
    nodes = products(instructions, start)
    assert len(nodes) == 3
    assert merged(nodes, lambda names: True) == [nodes]
    assert merged(nodes, lambda names: names[0].startswith("O")) == [[node] for node in nodes]


def test_products_that_make_no_grid_stay_apart() -> None:
    nodes = [
        Compute((f"I[{m},0]", f"W[0,{k}]"), f"O[{m},{k}]", "forward", {"M": m, "N": 0, "K": k})
        for m, k in ((0, 0), (1, 1))
    ]
    assert merged(nodes, lambda names: True) == [[node] for node in nodes]


def test_members_may_come_in_any_order() -> None:
    """The group lists its members otherwise than by rank: rows are not in the order of ranks."""
    assert [result["equal"] for result in on_ranks(RANKS, run_out_of_order)] == [True] * RANKS
