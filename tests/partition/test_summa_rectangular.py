"""SUMMA on rectangular meshes: exact, sends its formula, and is SUMMA on square ones."""

from __future__ import annotations

from itertools import product
from math import gcd

import pytest
from profiles import few

from primepar.partition import parse_sequence
from primepar.partition.summa import Summa, SummaRectangular
from primepar.reference import check
from primepar.schedule import Movement, Sequence, lower
from primepar.schedule.tracing import home_equations
from primepar.verify.program import verify_program

SIDES = [*product((1, 2, 3), repeat=3)]
MESHES = [(q, u, v) for q, u, v in SIDES if q * q * u * v <= 36]


@few
@pytest.mark.parametrize("sides", MESHES)
def test_every_mesh_equals_one_device_and_every_device_sends_the_formula(
    sides: tuple[int, int, int],
) -> None:
    report = check(Sequence.of(SummaRectangular(), *sides))
    assert (report.message, report.equal) == (None, True)
    q, u, v = sides
    M, N, K = (report.shape[dim] for dim in "MNK")
    expected = 3 * ((q * v - 1) * M * N + (q * u - 1) * N * K) / (q * q * u * v)
    assert set(report.sent) == {expected}


@pytest.mark.parametrize("sides", [(2, 1, 3), (3, 2, 1), (2, 2, 3)])
def test_a_device_holds_an_equal_part_of_every_tensor_and_one_block_of_the_output(
    sides: tuple[int, int, int],
) -> None:
    _, u, v = sides
    movement = Movement(Sequence.of(SummaRectangular(), *sides))
    for tensor, blocks in (("I", u), ("W", v), ("O", 1)):
        held = movement.home(tensor)
        assert {len(blocks_held) for blocks_held in held} == {blocks}
        assert len(frozenset[object]().union(*held)) == blocks * len(held)


@pytest.mark.parametrize("side", [1, 2, 3])
def test_a_square_mesh_with_as_many_panels_as_rows_is_summa(side: int) -> None:
    assert lower(Sequence.of(SummaRectangular(), side, 1, 1)) == lower(Sequence.of(Summa(), side))


@pytest.mark.parametrize(("rows", "columns"), [*product(range(1, 7), repeat=2)])
def test_a_mesh_is_spelt_by_its_rows_and_columns(rows: int, columns: int) -> None:
    text = f"S{rows}x{columns}"
    sequence = parse_sequence(text)
    assert str(sequence) == text
    assert (sequence.ranks, sequence.steps) == (rows * columns, gcd(rows, columns))


@pytest.mark.parametrize("sides", SIDES)
def test_every_mesh_is_read_as_it_is_spelt(sides: tuple[int, int, int]) -> None:
    (element,) = parse_sequence(str(Sequence.of(SummaRectangular(), *sides))).elements
    assert (type(element.primitive), element.sides) == (SummaRectangular, sides)


@pytest.mark.parametrize("text", ["S2x3,K2", "S1x2,S3x1", "N2,S1x3"])
def test_it_goes_inside_and_around_other_primitives(text: str) -> None:
    sequence = parse_sequence(text)
    assert check(sequence).message is None
    assert verify_program(lower(sequence)).verdict == "proved"


def test_the_input_has_a_home_with_the_digit_in_the_middle_open() -> None:
    assert home_equations(SummaRectangular()) == {
        "I": "I[(r, a), (c, *, b)]",
        "W": "W[(r, a), (c, b)]",
        "O": "O[(r, a), (c, b)]",
    }
    sequence = parse_sequence("S2x3")
    assert sequence.home("I", 4) == ((1, 1), (1, 4))
    assert sequence.home("W", 4) == ((3, 1), (4, 1), (5, 1))
