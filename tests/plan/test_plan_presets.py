"""Presets: what each method gives every operator, and the meshes and models it refuses.

Where an embedding looks up, where it sums its partial rows, and over whom.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import (
    BLOOM,
    COPIED,
    GPT2,
    LLAMA,
    LOOKUPS,
    NAMED,
    SCATTERED,
    WIDE,
    held,
    only,
    small,
)

from primepar.errors import PlanError
from primepar.models.config import ModelConfig
from primepar.plan import ends, lookup, parameter_places, part, preset_plan, summed_rows
from primepar.schedule.layout import Cells

COLUMN = ("blocks.0.qkv", "blocks.0.fc1", "head")
ROW = ("blocks.0.proj", "blocks.0.fc2")
STREAM = ("blocks.0.norm1", "blocks.0.add1", "blocks.0.norm2", "blocks.0.add2", "norm")
INNER = ("blocks.0.attention", "blocks.0.act")


def refusal(
    name: str,
    ranks: int,
    model: ModelConfig = WIDE,
    batch: int | None = None,
) -> str:
    with pytest.raises(PlanError) as caught:
        preset_plan(name, model, ranks, batch)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "ranks", "column", "row", "stream", "inner", "embedding", "loss"),
    [
        ("megatron", 4, "K4", "N4", "R4", "K4", "N4", "K4"),
        ("megatron-sp", 4, "Ks4", "Ns4", "M4", "K4", "Ns4", "K4"),
        ("summa", 9, "S3x3", "S3x3", "S3x3", "S3x3", "S3x3", "S3x3"),
        ("tesseract", 8, "T2x2x2", "T2x2x2", "T2x2x2", "T2x2x2", "T2x2x2", "T2x2x2"),
        ("3d", 8, "C2x2x2", "D2x2x2", "D2x2x2", "C2x2x2", "D2x2x2", "C2x2x2"),
        ("primepar", 4, "P2x2", "P2x2", "P2x2", "P2x2", "P2x2", "P2x2"),
        ("stationary", 4, "Os2x2", "Is2x2", "Is2x2", "Os2x2", "Is2x2", "Os2x2"),
        ("stationary-both-ways", 4, "Ob2x2x2", "Ib2x2x2", "Ib2x2x2", "Ob2x2x2", "Ib2x2x2",
         "Ob2x2x2"),
        ("data", 4, "M4", "M4", "M4", "M4", "M4", "M4"),
        ("M2,megatron", 4, "M2,K2", "M2,N2", "M2,R2", "M2,K2", "M2,N2", "M2,K2"),
        ("M2,stationary", 8, "M2,Os2x2", "M2,Is2x2", "M2,Is2x2", "M2,Os2x2", "M2,Is2x2",
         "M2,Os2x2"),
    ],
)  # fmt: skip
def test_a_method_gives_every_operator_its_sequence(
    name: str,
    ranks: int,
    column: str,
    row: str,
    stream: str,
    inner: str,
    embedding: str,
    loss: str,
) -> None:
    plan = preset_plan(name, WIDE, ranks)
    expected = dict.fromkeys(COLUMN, column) | dict.fromkeys(ROW, row)
    expected |= dict.fromkeys(STREAM, stream) | dict.fromkeys(INNER, inner)
    assert plan.sequences == expected | {"embedding": embedding, "loss": loss}


def test_the_norm_of_an_embedding_is_of_the_stream() -> None:
    assert preset_plan("megatron", BLOOM, 2).sequences["embedding.norm"] == "R2"


@pytest.mark.parametrize(("name", "ranks"), [*NAMED, *COPIED])
def test_a_preset_is_for_its_mesh_and_its_batch(name: str, ranks: int) -> None:
    plan = preset_plan(name, WIDE, ranks, batch=72)
    assert (plan.ranks, plan.batch, plan.model) == (ranks, 72, WIDE)
    assert {plan.sequence(operator.name).ranks for operator in plan.operators} == {ranks}


@pytest.mark.parametrize(
    ("ranks", "mesh"),
    [(1, "1x1x1"), (4, "2x2x1"), (8, "2x2x2"), (12, "2x2x3"), (16, "4x4x1"), (18, "3x3x2"),
     (32, "4x4x2"), (64, "4x4x4"), (20, "2x2x5")],
)  # fmt: skip
def test_tesseract_is_as_deep_as_it_is_wide_if_it_can(ranks: int, mesh: str) -> None:
    model = ModelConfig.of("gpt2", layers=1, hidden=48, heads=48, context=2, vocabulary=5)
    assert preset_plan("tesseract", model, ranks).sequences["head"] == f"T{mesh}"


@pytest.mark.parametrize(
    ("ranks", "depth", "sequence"),
    [(16, 1, "T4x4x1"), (16, 4, "T2x2x4"), (8, 8, "T1x1x8"), (18, 2, "T3x3x2")],
)
def test_tesseract_takes_any_depth_that_fits(ranks: int, depth: int, sequence: str) -> None:
    model = ModelConfig.of("gpt2", layers=1, hidden=48, heads=48, context=2, vocabulary=5)
    plan = preset_plan(f"tesseract:{depth}", model, ranks)
    assert set(plan.sequences.values()) == {sequence}
    copies = preset_plan(f"M2,tesseract:{depth}", model, 2 * ranks)
    assert set(copies.sequences.values()) == {f"M2,{sequence}"}


# What is refused


@pytest.mark.parametrize(
    ("name", "ranks", "message"),
    [
        ("summa", 6, "expected q x q devices, got 6: take 4 or 9"),
        ("summa", 8, "expected q x q devices, got 8: take 4 or 9, or write M2,summa"),
        ("primepar", 12, "expected s x s devices, got 12: take 9 or 16, or write M3,primepar"),
        ("stationary", 2, "expected s x s devices, got 2: take 4 or 9"),
        ("3d", 4, "expected q x q x q devices, got 4: take 8"),
        ("3d", 16, "expected q x q x q devices, got 16: take 8 or 27, or write M2,3d"),
        ("tesseract", 6, "expected q x q x d devices, q > 1, got 6: take 4 or 8"),
        ("M2,summa", 4, "expected q x q devices, got 2: take 4 or 9"),
        ("M3,megatron", 4, "expected a number of devices that M3 divides, got 4: take 3 or a "
         "multiple of it, or another M"),
        ("M0,megatron", 4, "expected a number of devices that M0 divides, got 4: take 1 or a "
         "multiple of it, or another M"),
        ("megatron", 0, "expected 1 to 4096 devices, got 0"),
        ("megatron", 5000, "expected 1 to 4096 devices, got 5000"),
    ],
)  # fmt: skip
def test_a_mesh_that_a_method_cannot_use_is_refused(name: str, ranks: int, message: str) -> None:
    assert refusal(name, ranks) == f"{name}: {message}"


@pytest.mark.parametrize("name", ["ring", "", "M2,", "M2,ring", "K2,megatron", "M2,M2,megatron"])
def test_a_name_of_no_method_is_refused(name: str) -> None:
    assert refusal(name, 4) == (
        "expected a preset plan (megatron, megatron-sp, summa, tesseract, 3d, primepar, "
        f"stationary, stationary-both-ways, data), or M<d>, before one as in M2,megatron, "
        f"got {name!r}"
        f"{': write megatron' * name.endswith('megatron')}"
    )


@pytest.mark.parametrize(
    ("name", "ranks", "message"),
    [
        ("tesseract:3", 8, "expected q x q x 3 devices, got 8: take another depth"),
        ("tesseract:4", 8, "expected q x q x 4 devices, got 8: take another depth"),
        ("tesseract:0", 8, "expected q x q x 0 devices, got 8: take another depth"),
        ("summa:1", 4, "expected no depth, which only tesseract has, got :1: write summa"),
    ],
)
def test_a_depth_that_does_not_fit_is_refused(name: str, ranks: int, message: str) -> None:
    assert refusal(name, ranks) == f"{name}: {message}"


@pytest.mark.parametrize(
    ("name", "ranks", "model", "batch", "message"),
    [
        ("megatron", 8, GPT2, None, '$.sequences["blocks.0.attention"]: expected heads=12 to be a '
         "multiple of the 8 slices of the columns in 'K8': take a sequence that cuts them in "
         "fewer, or a model with heads=16"),
        ("megatron-sp", 2, LLAMA, None, '$.sequences["blocks.0.attention"]: expected kv_heads=3 '
         "to be a multiple of the 2 slices of the columns in 'K2': take a sequence that cuts "
         "them in fewer, or a model with kv_heads=4"),
        ("summa", 25, GPT2, None, '$.sequences["embedding"]: expected hidden=48 to be a multiple '
         "of the 5 slices of the columns in 'S5x5': take a sequence that cuts them in fewer, or a "
         "model with hidden=50"),
        ("data", 4, GPT2, 6, "$.batch: expected a multiple or a divisor of the 4 slices of "
         "the rows in blocks.0.attention, got 6: take 8"),
    ],
)  # fmt: skip
def test_a_model_or_batch_that_a_method_does_not_divide_is_refused(
    name: str, ranks: int, model: ModelConfig, batch: int | None, message: str
) -> None:
    assert refusal(name, ranks, model, batch) == f"{name} on {ranks} devices: {message}"


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
