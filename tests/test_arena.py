"""The arena: no two buffers share bytes that both need, and little memory is lost."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from primepar.distributed.runtime.arena import (
    ALIGNMENT,
    Lifetime,
    least_bytes,
    offsets,
)


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    """Some buffers of a list of twenty instructions."""
    size, place = st.integers(0, 4 * ALIGNMENT), st.integers(0, 19)
    pairs = draw(st.lists(st.tuples(size, place, place), max_size=24))
    return [Lifetime(size, min(a, b), max(a, b)) for size, a, b in pairs]


def collisions(needed: list[Lifetime], places: list[int]) -> list[tuple[int, int]]:
    """Pairs of buffers that have bytes in common at an instruction that needs both."""
    placed = list(enumerate(zip(needed, places, strict=True)))
    return [
        (i, j)
        for (i, (one, start)), (j, (two, begin)) in combinations(placed, 2)
        if one.first <= two.last and two.first <= one.last
        and start < begin + two.bytes and begin < start + one.bytes
    ]  # fmt: skip


@given(lifetimes())
def test_buffers_that_are_needed_together_are_apart(needed: list[Lifetime]) -> None:
    places, total = offsets(needed)
    assert collisions(needed, places) == []
    assert all(place % ALIGNMENT == 0 for place in places)
    assert total >= least_bytes(needed)
    ends = [place + one.bytes for place, one in zip(places, needed, strict=True)]
    assert max(ends, default=0) <= total <= max(ends, default=0) + ALIGNMENT


def test_the_least_is_what_one_instruction_needs() -> None:
    needed = [Lifetime(64, 0, 2), Lifetime(65, 2, 3), Lifetime(64, 3, 3)]
    assert least_bytes(needed) == 64 + 128
    assert offsets(needed) == ([0, 64, 0], 192)


def test_memory_of_the_past_is_used_again() -> None:
    needed = [Lifetime(640, place, place + 1) for place in range(10)]
    assert offsets(needed)[1] == least_bytes(needed) == 1280
