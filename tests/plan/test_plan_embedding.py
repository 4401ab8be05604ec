"""Where an embedding looks up, where it sums its partial rows, and over whom."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import LOOKUPS, SCATTERED, held, only, small

from primepar.plan import ends, lookup, parameter_places, part, summed_rows
from primepar.schedule.layout import Cells


@pytest.mark.parametrize(
    ("sequence", "blocks", "sums", "gradients"),
    [
        ("N4", [(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 0)], ((0, 1, 2, 3),), ()),
        ("Ns4", [(0, 0, 0), (0, 1, 0), (0, 2, 0), (0, 3, 0)], ((0, 1, 2, 3),), ()),
        ("M2,Ns2", [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)], ((0, 1), (2, 3)),
         ((0, 2), (1, 3))),
        ("M2,R2", [(0, 0, 0), (0, 0, 0), (1, 0, 0), (1, 0, 0)], (), ((0, 2), (1, 3))),
        ("S2x2", [(0, 0, 0), (0, 0, 1), (1, 0, 0), (1, 0, 1)], (), ((0, 2), (1, 3))),
        ("K2,N2", [(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)], ((0, 1), (2, 3)), ()),
    ],
)  # fmt: skip
def test_the_embedding_sums_over_the_cuts_of_its_vocabulary(
    sequence: str,
    blocks: list[tuple[int, int, int]],
    sums: tuple[tuple[int, ...], ...],
    gradients: tuple[tuple[int, ...], ...],
) -> None:
    plan = only(small(), embedding=sequence)
    looked_up = lookup(plan)
    assert held(looked_up) == blocks
    assert tuple(group for group in looked_up.peers_along(1) if len(group) > 1) == sums
    assert parameter_places(plan)["embedding.token"].summed == gradients


def test_the_rows_of_a_scattered_sum_are_among_those_that_were_looked_up() -> None:
    plan = only(small(), embedding="M2,Ns2")
    assert held(ends(plan, "embedding").output) == [(0, 0), (1, 0), (2, 0), (3, 0)]
    assert held(part(lookup(plan), (0, 2))) == [(0, 0), (0, 0), (1, 0), (1, 0)]


@pytest.mark.parametrize(
    ("sequence", "kept", "output"),
    [
        ("Ns4", [0, 1, 2, 3], [0, 1, 2, 3]),
        ("Ns2,N2", [0, 0, 1, 1], [0, 0, 1, 1]),
        ("N2,M2", [0, 1, 0, 1], [0, 1, 0, 1]),
        ("Ns2,M2", [0, 2, 1, 3], [0, 1, 2, 3]),
    ],
)
def test_sums_are_made_in_place_where_the_rows_of_the_output_were_looked_up(
    sequence: str, kept: list[int], output: list[int]
) -> None:
    plan = only(small(), embedding=sequence)
    assert held(summed_rows(plan)) == [(row, 0) for row in kept]
    assert held(ends(plan, "embedding").output) == [(row, 0) for row in output]


@pytest.mark.parametrize("sequence", [*SCATTERED, *LOOKUPS])
def test_every_rank_sums_a_part_of_what_it_looked_up_and_each_part_is_summed_alike(
    sequence: str,
) -> None:
    plan = only(small("data", 8), embedding=sequence)
    looked_up, kept, output = lookup(plan), summed_rows(plan), ends(plan, "embedding").output
    assert kept.grid == output.grid
    parts = kept.grid[0] // looked_up.grid[0]
    for group in looked_up.peers_along(1):
        row, _, column = looked_up.held[group[0]][0]
        count = Counter(kept.held[rank][0] for rank in group)
        copies = len(group) // parts
        blocks = [(parts * row + part, column) for part in range(parts)]
        assert count == dict.fromkeys(blocks, copies)
        counts = Counter(output.held[rank][0] for rank in group)
        stay = sum(kept.held[rank] == output.held[rank] for rank in group)
        assert stay == sum(min(copies, counts[block]) for block in blocks)


@given(embedding=st.sampled_from(LOOKUPS))
def test_every_entry_of_the_vocabulary_is_summed_exactly_once(embedding: str) -> None:
    plan = only(small("data", 8), embedding=embedding)
    looked_up, output = lookup(plan), ends(plan, "embedding").output
    partial = part(looked_up, (0, 2))
    for group in looked_up.peers_along(1):
        entries = Counter(entry for rank in group for entry in looked_up.slices(rank, 1))
        assert entries == dict.fromkeys(range(looked_up.grid[1]), 1)
        assert len({partial.held[rank] for rank in group}) == 1
    for rank in range(8):
        cells = Cells.of(partial, output)
        assert set(cells.held(output, rank)) <= set(cells.held(partial, rank))
