"""Redistribution on real processes: between any two layouts."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import redistribution_cases as cases
from distributed_ranks import on_ranks
from hypothesis import given
from layout_cases import layouts

from primepar.schedule import Layout
from primepar.schedule.layout import moved

RANKS = 6
EACH = layouts(RANKS) | layouts(RANKS, apart=True)
Way = tuple[Layout, Layout]


def test_a_tensor_arrives_from_any_layout_in_any_other() -> None:
    asked = drawn()
    outcomes = on_ranks(RANKS, cases.ways, asked)
    for way, by_rank in zip(asked, zip(*outcomes, strict=True), strict=True):
        check_way(way, by_rank)


def drawn() -> list[Way]:
    """Every case that hypothesis draws, for one world."""
    ways: list[Way] = []

    @given(EACH, EACH)
    def collect(source: Layout, target: Layout) -> None:
        ways.append((source, target))

    collect()
    return ways


def check_way(way: Way, outcomes: tuple[cases.Outcome, ...]) -> None:
    """Every rank has what it should, and together they sent what was missing."""
    for outcome in outcomes:
        assert outcome[:3] == (True,) * 3, way
    elements = prod(cases.whole_tensor(*way).shape)
    assert sum((outcome.sent for outcome in outcomes), Fraction(0)) == moved(*way) * elements
