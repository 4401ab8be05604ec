"""Which batches a plan takes, and which ranks share a sequence then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import NAMED, WIDE, changed, small

from primepar.errors import PlanError
from primepar.plan import Plan, ends, preset_plan, sequence_lines

NAME = "blocks.0.attention"


@pytest.mark.parametrize(
    ("name", "ranks", "every", "attention"),
    [("megatron", 4, 1, 1), ("megatron-sp", 4, 4, 1), ("summa", 9, 3, 3), ("tesseract", 8, 4, 4),
     ("3d", 8, 4, 4), ("data", 8, 8, 8)],
)  # fmt: skip
def test_a_plan_knows_in_how_many_slices_it_cuts_the_rows(
    name: str, ranks: int, every: int, attention: int
) -> None:
    cuts = small(name, ranks).row_cuts
    assert (cuts.every, cuts.attention) == (every, {"blocks.0.attention": attention})


def test_cuts_of_the_rows_by_two_operators_count_together() -> None:
    plan = small("megatron", 6)
    other = Plan(model=WIDE, ranks=6, sequences=changed(plan, qkv="M3,K2", norm1="M2,R3"))
    assert (plan.row_cuts.every, other.row_cuts.every) == (1, 6)


@pytest.mark.parametrize(
    ("name", "ranks", "positions", "batches"),
    [
        ("megatron", 4, 3, [1, 2, 3, 4, 5, 6, 7, 8]),
        ("megatron-sp", 4, 4, [1, 2, 3, 4, 5, 6, 7, 8]),
        ("megatron-sp", 4, 6, [2, 4, 6, 8]),
        ("data", 4, 4, [1, 2, 4, 8]),
        ("data", 4, 6, [2, 4, 8]),
        ("data", 4, 1, [4, 8]),
        ("data", 6, 1, [6]),
        ("data", 6, 6, [1, 2, 3, 6]),
    ],
)
def test_attention_takes_whole_sequences_or_equal_parts_of_one(
    name: str, ranks: int, positions: int, batches: list[int]
) -> None:
    cuts = small(name, ranks).row_cuts
    assert [b for b in range(1, 9) if cuts.refusal(b, positions) is None] == batches
    assert cuts.smallest_batch(positions) == batches[0]
    small(name, ranks).check_batch(batches[0], positions)


SLICES = "expected a multiple or a divisor of the 4 slices of the rows in blocks.0.attention"


@pytest.mark.parametrize(
    ("batch", "positions", "message"),
    [
        (0, 4, "expected 1 sequence or more, got 0: take 1"),
        (-3, 2, "expected 1 sequence or more, got -3: take 2"),
        (6, 4, f"{SLICES}, got 6: take 8"),
        (3, 3, f"{SLICES}, got 3: take 4"),
        (1, 6, "expected rows in a multiple of 4, as the operators cut them, got 6, 1 x 6 tokens: "
         "take 2"),
        (2, 3, "expected rows in a multiple of 4, as the operators cut them, got 6, 2 x 3 tokens: "
         "take 4"),
    ],
)  # fmt: skip
def test_a_batch_that_cannot_be_cut_is_refused(batch: int, positions: int, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        small("data", 4).check_batch(batch, positions)
    assert str(caught.value) == f"batch: {message}"


def test_a_planned_batch_has_sequences_of_the_context_of_the_model() -> None:
    plan = small("data", 8)
    assert Plan(model=WIDE, ranks=8, batch=2, sequences=plan.sequences).batch == 2
    with pytest.raises(PlanError) as caught:
        Plan(model=WIDE, ranks=8, batch=1, sequences=plan.sequences)
    assert str(caught.value) == (
        "$.batch: expected rows in a multiple of 8, as the operators cut them, got 4, 1 x 4 "
        "tokens: take 2"
    )


# Who shares a sequence


@pytest.mark.parametrize(
    ("attention", "batch", "lines"),
    [
        ("M4", 1, ((0, 1, 2, 3),)),
        ("M4", 2, ((0, 1), (2, 3))),
        ("M4", 4, ((0,), (1,), (2,), (3,))),
        ("M4", 8, ((0,), (1,), (2,), (3,))),
        ("K4", 1, ((0,), (1,), (2,), (3,))),
        ("M2,K2", 1, ((0, 2), (1, 3))),
        ("K2,M2", 1, ((0, 1), (2, 3))),
        ("R2,M2", 1, ((0, 1), (2, 3))),
        ("M2,R2", 1, ((0, 2), (1, 3))),
        ("Is2x2", 1, ((0, 3), (1, 2))),
        ("Ws2x2", 1, ((0, 2), (3, 1))),
    ],
)
def test_a_line_has_the_parts_of_a_sequence_in_their_order(
    attention: str, batch: int, lines: tuple[tuple[int, ...], ...]
) -> None:
    plan = small("data", 4)
    other = Plan(model=WIDE, ranks=4, sequences=changed(plan, attention=attention))
    assert sequence_lines(ends(other, NAME).output, batch) == lines


@given(st.sampled_from(NAMED), st.integers(1, 9))
def test_every_rank_is_in_one_line_with_every_part_of_its_sequence(
    named: tuple[str, int], least: int
) -> None:
    plan = preset_plan(named[0], WIDE, named[1])
    batch = plan.row_cuts.smallest_batch(WIDE.context, least)
    layout = ends(plan, NAME).output
    lines, parts = sequence_lines(layout, batch), max(1, layout.grid[0] // batch)
    assert sorted(rank for line in lines for rank in line) == list(range(plan.ranks))
    for line in lines:
        rows, columns = zip(*(layout.held[rank][0] for rank in line), strict=True)
        assert len(set(columns)) == 1
        assert rows == tuple(range(rows[0], rows[0] + parts))
        assert rows[0] % parts == 0
