"""Layouts of a plan: where operators take and leave, what moves, and which gradients are summed."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import chain
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import (
    BLOOM,
    COPIED,
    GPT2,
    LLAMA,
    LOOKUPS,
    MESHES,
    MIXED,
    NAMED,
    WIDE,
    held,
    only,
    small,
)

from primepar.errors import SequenceError
from primepar.models.config import ModelConfig
from primepar.partition import PRIMITIVES, parse_sequence
from primepar.plan import (
    Plan,
    edges,
    ends,
    lookup,
    padded_vocabulary,
    parameter_places,
    part,
    preset_plan,
    weight_layout,
)
from primepar.schedule import Layout, redistribution
from primepar.schedule.layout import Cells
from primepar.schedule.program import ISend

STAYS = (Fraction(0), Fraction(0))
APART = ("Ks2,M4", "Ks2,Ns4", "Ks2,P2x2", "Ns2,S2x2", "Ks2,Ns2,Ks2", "Ns4,Ks2")
STILL = [name for name in MESHES if name != "primepar"]


def refined(layout: Layout, grid: tuple[int, ...]) -> Layout:
    """The same layout in finer equal blocks."""
    cells = Cells.even(grid)
    return Layout(grid, tuple(cells.held(layout, rank) for rank in range(layout.ranks)))


# Replicated


def test_a_replicated_operator_is_whole_on_every_device() -> None:
    assert parse_sequence("M2,R3", linear=False).grid == {"M": 2, "N": 1, "K": 1}
    assert str(parse_sequence("R", linear=False)) == "R2"


def test_replication_is_refused_where_a_linear_operator_would_work_twice() -> None:
    with pytest.raises(SequenceError) as caught:
        parse_sequence("M2,R3")
    assert str(caught.value) == (
        "sequence 'M2,R3': expected primitives like B, M, N, K, Ks, Ns, S2x2, S2x3, Sd2x2x2, "
        "Sk2x2x2, T2x2x2, C2x2x2, D2x2x2, Cr2x2x2, G2x2x2, Gi2x2x2, Gw2x2x2, Gr2x2x2, P2x2, Os2x2, "
        "Is2x2, Ws2x2, Ob2x2x2, Ib2x2x2, Wb2x2x2, "
        "got 'R3' (R is for operators that are not linear, in a plan)"
    )


def test_replication_is_no_primitive_of_the_library() -> None:
    assert "R" not in {primitive.label for primitive in PRIMITIVES.values()}


# The coarsest layout


@given(
    factors=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    coarse=st.lists(st.sets(st.tuples(st.integers(0, 2), st.integers(0, 1))), min_size=1),
)
def test_the_coarsest_layout_is_the_same_in_no_more_blocks(
    factors: tuple[int, int], coarse: list[set[tuple[int, int]]]
) -> None:
    given_ = Layout((3, 2), tuple(tuple(sorted(blocks)) for blocks in coarse))
    fine = refined(given_, (3 * factors[0], 2 * factors[1]))
    result = fine.coarsest()
    assert refined(result, fine.grid) == fine
    assert result == given_.coarsest()
    assert prod(result.grid) <= prod(given_.grid)


def test_a_block_that_is_held_in_part_stays_cut() -> None:
    halves = Layout((4, 1), (((0, 0), (1, 0)), ((2, 0), (3, 0))))
    assert halves.coarsest() == Layout((2, 1), (((0, 0),), ((1, 0),)))
    strided = Layout((4, 1), (((0, 0), (2, 0)), ((1, 0), (3, 0))))
    assert strided.coarsest() == strided


# Ends


@pytest.mark.parametrize(
    ("sequence", "takes", "leaves", "leaves_gradient"),
    [
        ("K4", [(0, 0)] * 4, [(0, 0), (0, 1), (0, 2), (0, 3)], [(0, 0)] * 4),
        ("N4", [(0, 0), (0, 1), (0, 2), (0, 3)], [(0, 0)] * 4, [(0, 0), (0, 1), (0, 2), (0, 3)]),
        ("Ks4", [(0, 0), (1, 0), (2, 0), (3, 0)], [(0, 0), (0, 1), (0, 2), (0, 3)],
         [(0, 0), (1, 0), (2, 0), (3, 0)]),
        ("S2x2", [(0, 0), (0, 1), (1, 0), (1, 1)], [(0, 0), (0, 1), (1, 0), (1, 1)],
         [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ("P2x2", [(0, 0), (0, 1), (1, 1), (1, 0)], [(0, 0), (0, 1), (1, 0), (1, 1)],
         [(0, 1), (0, 0), (1, 0), (1, 1)]),
        ("Os2x2", [(0, 0), (0, 1), (1, 1), (1, 0)], [(0, 0), (0, 1), (1, 0), (1, 1)],
         [(0, 0), (0, 1), (1, 1), (1, 0)]),
    ],
)  # fmt: skip
def test_a_linear_operator_takes_where_it_starts_and_leaves_where_it_ends(
    sequence: str,
    takes: list[tuple[int, int]],
    leaves: list[tuple[int, int]],
    leaves_gradient: list[tuple[int, int]],
) -> None:
    layouts = ends(only(small(), fc1=sequence), "blocks.0.fc1")
    assert held(layouts.input) == takes
    assert held(layouts.output) == leaves
    assert held(layouts.input_gradient) == leaves_gradient


@pytest.mark.parametrize(
    ("sequence", "grid", "blocks"),
    [
        ("R4", (1, 1), [(0, 0)] * 4),
        ("M2,R2", (2, 1), [(0, 0), (0, 0), (1, 0), (1, 0)]),
        ("M2,K2", (2, 2), [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ("S2x2", (2, 2), [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ("Is2x2", (2, 2), [(0, 0), (0, 1), (1, 1), (1, 0)]),
    ],
)
def test_any_other_operator_works_where_a_linear_one_would_leave_its_output(
    sequence: str, grid: tuple[int, int], blocks: list[tuple[int, int]]
) -> None:
    layouts = ends(only(small(), norm1=sequence), "blocks.0.norm1")
    assert layouts.input == layouts.output == layouts.input_gradient
    assert (layouts.output.grid, held(layouts.output)) == (grid, blocks)


@pytest.mark.parametrize(
    ("sequence", "takes", "leaves"),
    [
        ("Ks2,Ns2", [[0, 0], [0, 1], [1, 0], [1, 1]], [[0, 0, 2, 0], [1, 0, 3, 0], [0, 1, 2, 1],
                                                       [1, 1, 3, 1]]),
        ("Ns2,M2", [[0, 0, 2, 0], [1, 0, 3, 0], [0, 1, 2, 1], [1, 1, 3, 1]],
         [[0, 0], [1, 0], [2, 0], [3, 0]]),
    ],
)  # fmt: skip
def test_a_linear_operator_may_take_or_leave_several_rows_of_blocks(
    sequence: str, takes: list[list[int]], leaves: list[list[int]]
) -> None:
    layouts = ends(only(small(), fc1=sequence), "blocks.0.fc1")
    for layout, expected in ((layouts.input, takes), (layouts.output, leaves)):
        assert [list(chain(*blocks)) for blocks in layout.held] == expected
    assert layouts.input_gradient == layouts.input


def test_a_bias_has_the_layout_of_its_output_in_several_blocks_too() -> None:
    plan = only(small("data", 16), fc1="C2x2x2,K2")
    place = parameter_places(plan)["blocks.0.fc1.bias"]
    assert place.layout.grid == (8,)
    assert set(place.layout.held) == {((inde,), (inde + 2,)) for inde in (0, 1, 4, 5)}
    check_sums(plan)


# What moves


def moved(plan: Plan) -> dict[tuple[str, str], tuple[Fraction, Fraction]]:
    """(producer, consumer) -> part of the tensor moved, forward and backward; not of the table."""
    return {
        (edge.producer, edge.consumer): (edge.forward.moved, edge.backward.moved)
        for edge in edges(plan)
        if edge.rows is None
    }


@pytest.mark.parametrize(
    ("name", "ranks"),
    [case for case in (*NAMED, *COPIED) if case[0].removeprefix("M2,") in STILL],
)
def test_nothing_moves_between_the_operators_of_a_chained_method(name: str, ranks: int) -> None:
    elements = moved(small(name, ranks))
    assert set(elements.values()) == {STAYS}
    assert len(elements) == 15


@pytest.mark.parametrize("side", [1, 2, 3, 4])
def test_primepar_moves_all_but_one_of_s_blocks_to_and_from_every_linear_operator(
    side: int,
) -> None:
    part_ = 1 - Fraction(1, side)
    linears = ("qkv", "proj", "fc1", "fc2", "head")
    for (_, consumer), ways in moved(small("primepar", side * side)).items():
        assert ways == ((part_, part_) if consumer.endswith(linears) else STAYS)


def test_the_stationary_mlp_has_one_layout_on_both_sides_of_every_edge() -> None:
    plan = small("stationary", 9)
    for edge in edges(plan):
        if edge.consumer in ("blocks.0.fc1", "blocks.0.act", "blocks.0.fc2", "blocks.0.add2"):
            assert edge.forward.source == edge.forward.target
            assert edge.backward.source == edge.backward.target
    fc1, fc2 = ends(plan, "blocks.0.fc1"), ends(plan, "blocks.0.fc2")
    assert fc1.output == fc2.input == fc2.input_gradient
    assert fc1.input == fc2.output == fc1.input_gradient != fc1.output


def test_two_operators_that_do_not_chain_move_what_their_redistribution_sends() -> None:
    plan = only(small("stationary"), norm2="R4")
    elements = moved(plan)
    assert elements["blocks.0.add1", "blocks.0.norm2"] == (Fraction(3), Fraction(0))
    assert elements["blocks.0.norm2", "blocks.0.fc1"] == (Fraction(0), Fraction(3))
    (edge,) = (candidate for candidate in edges(plan) if candidate.consumer == "blocks.0.norm2")
    program = redistribution(edge.forward.source, edge.forward.target)
    blocks = sum(isinstance(node, ISend) for rank in program.programs for node in rank)
    assert blocks == 12  # each of 4 blocks to the 3 devices that lack it
    assert edge.elements(10) == (3 * 10 * 72, 0)


def test_elements_are_the_parts_of_the_tensor_between_the_operators() -> None:
    elements = {edge.consumer: edge.elements(16) for edge in edges(small("primepar"))}
    assert elements["blocks.0.fc2"] == (16 * 288 // 2, 16 * 288 // 2)
    assert elements["blocks.0.norm1"] == elements["blocks.0.attention"] == (0, 0)


def test_every_input_of_every_operator_has_an_edge() -> None:
    plan = small(model=GPT2)
    pairs = [(edge.producer, edge.consumer) for edge in edges(plan) if edge.rows is None]
    assert pairs == [
        (source, operator.name) for operator in plan.operators for source in operator.inputs
    ]


# The table


def test_a_head_that_shares_the_table_in_its_layout_moves_nothing() -> None:
    (table,) = (edge for edge in edges(small("megatron")) if edge.rows is not None)
    assert (table.producer, table.consumer) == ("embedding", "head")
    assert table.elements(1000) == (0, 0)


def test_a_head_that_shares_the_table_elsewhere_moves_it_whatever_the_tokens() -> None:
    plan = small("summa")
    (table,) = (edge for edge in edges(plan) if edge.rows is not None)
    assert table.forward.source == part(lookup(plan), (1, 2))
    assert table.forward.target == part(weight_layout(plan, "head"), (1, 0))
    assert table.backward.source == table.forward.target
    assert table.rows == padded_vocabulary(plan) == 50
    assert table.elements(7) == table.elements(9) == (50 * 72 // 2, 3 * 50 * 72 // 2)


def test_a_head_with_a_weight_of_its_own_has_no_table() -> None:
    assert all(edge.rows is None for edge in edges(small("data", 3, LLAMA)))


@pytest.mark.parametrize(
    ("name", "ranks", "padded"),
    [("megatron", 4, 100), ("megatron-sp", 3, 99), ("data", 8, 97), ("primepar", 9, 99)],
)
def test_the_vocabulary_is_padded_to_its_cuts(name: str, ranks: int, padded: int) -> None:
    assert padded_vocabulary(small(name, ranks, GPT2)) == padded


def test_every_cut_of_the_vocabulary_counts() -> None:
    plan = only(small("data", 4, GPT2), embedding="N4", head="M2,K2", loss="K4")
    assert padded_vocabulary(plan) == 100
    assert padded_vocabulary(only(plan, loss="M4", embedding="M4")) == 98


# What is summed


def contributions(plan: Plan, parameter: str) -> Layout | None:
    """Layout whose rows are what each rank's own gradient of a parameter is summed over."""
    if parameter == "embedding.token":
        return part(lookup(plan), (0, 1, 2))
    name, _, role = parameter.rpartition(".")
    linear = plan.operator(name).kind == "linear"
    return None if linear and role == "weight" else ends(plan, name).output


FITTING = [
    *((WIDE, *case) for case in (*NAMED, *COPIED)),
    *((BLOOM, *case) for case in (*NAMED, *COPIED) if case[1] in (4, 8)),
    *((LLAMA, *case) for case in NAMED if case[1] == 3),
]


@pytest.mark.parametrize(("model", "name", "ranks"), FITTING)
def test_every_gradient_is_summed_exactly_once(model: ModelConfig, name: str, ranks: int) -> None:
    check_sums(preset_plan(name, model, ranks))


@given(
    embedding=st.sampled_from(LOOKUPS),
    norm1=st.sampled_from(MIXED),
    norm=st.sampled_from(MIXED),
    qkv=st.sampled_from(APART),
)
def test_every_gradient_is_summed_exactly_once_whatever_is_mixed(**sequences: str) -> None:
    check_sums(only(small("data", 8), **sequences))


def check_sums(plan: Plan) -> None:
    """Every rank gets each row's part of a gradient of its block once, its own among them."""
    places = parameter_places(plan)
    assert list(places) == list(plan.model.parameter_shapes)
    for parameter, place in places.items():
        layout = contributions(plan, parameter)
        if layout is None:
            assert place.summed == ()
            continue
        groups = [*place.summed, *((rank,) for rank in range(plan.ranks))]
        for rank in range(plan.ranks):
            group = next(group for group in groups if rank in group)
            assert len({place.layout.held[member] for member in group}) == 1, parameter
            rows = Counter(row for member in group for row in layout.slices(member, 0))
            assert rows == dict.fromkeys(range(layout.grid[0]), 1), (parameter, group)


def test_weights_rest_as_blocks_of_their_own_shape() -> None:
    places = parameter_places(small("3d", 8))
    assert places["blocks.0.qkv.weight"].layout.grid == (2, 4)
    assert places["blocks.0.qkv.bias"].layout.grid == (2,)
    assert places["embedding.position"].layout.grid == (1, 2)
    assert places["blocks.0.norm1.weight"].summed == ((0, 2, 4, 6), (1, 3, 5, 7))
