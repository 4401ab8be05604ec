"""Layouts as arrays are the plan's, and their link loads are what redistribution sends."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from planner_cases import TWO_LEVELS

from primepar.plan.cost.candidate import Candidate
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.operator_layouts import ends_of
from primepar.plan.search.sequence_space import SequenceSpace, SpaceName
from primepar.schedule.layout import Layout, moved

ENDS = {"I": "input", "O": "output", "dI": "input_gradient"}


def layouts_of(candidate: Candidate) -> dict[str, Layout]:
    """The layouts of a sequence in a plan."""
    linear = "I" in candidate.spread
    layouts = ends_of("linear" if linear else "add", candidate.text)
    return {tensor: getattr(layouts, ENDS[tensor]) for tensor in (ENDS if linear else ("O",))}


def as_layout(candidate: Candidate, tensor: str) -> Layout:
    rows, columns = candidate.spread[tensor].rows, candidate.spread[tensor].columns
    held = [frozenset(product(rows.held(rank), columns.held(rank)))
            for rank in range(len(rows.values_D))]  # fmt: skip
    return Layout.of((rows.count, columns.count), held).coarsest()


@pytest.mark.parametrize("space", ["paper", "all"])
def test_a_sequence_leaves_its_tensors_in_the_layouts_of_a_plan(space: SpaceName) -> None:
    bits = 3 if space == "paper" else 2
    candidates = [*SequenceSpace.whole(space, bits).linear, *SequenceSpace.whole(space, bits).local]
    for candidate in candidates:
        for tensor, expected in layouts_of(candidate).items():
            layout = as_layout(candidate, tensor)
            assert (layout.grid, layout.held) == (expected.grid, expected.held), candidate.text


def test_what_moves_is_what_redistribution_sends() -> None:
    layouts, chosen = Layouts(ClusterLinks(TWO_LEVELS, 3)), Random(1)
    linear = SequenceSpace.whole("all", 3).linear
    pairs = [(chosen.choice(linear), chosen.choice(linear)) for _ in range(60)]
    for one, other in pairs:
        source, target = layouts.number(one.spread["O"]), layouts.number(other.spread["I"])
        assert source is not None
        assert target is not None
        ways = layouts.ways([source], [target])
        expected = moved(layouts_of(one)["O"], layouts_of(other)["I"])
        assert ways.moved_PQ[0, 0] == pytest.approx(float(expected)), (one.text, other.text)


def test_what_a_group_does_not_hold_comes_through_its_link() -> None:
    """Against a count device by device, cell by cell."""
    links = ClusterLinks(TWO_LEVELS, 3)
    layouts, chosen = Layouts(links), Random(2)
    candidates = SequenceSpace.whole("all", 3).linear
    for one, other in ((chosen.choice(candidates), chosen.choice(candidates)) for _ in range(60)):
        numbers = layouts.number(one.spread["O"]), layouts.number(other.spread["I"])
        ways = layouts.ways([numbers[0] or 0], [numbers[1] or 0])
        held = [cells(one, "O", rank) for rank in range(8)]
        wanted = [cells(other, "I", rank) - held[rank] for rank in range(8)]
        node = [set[tuple[int, int]]().union(*held[first : first + 4]) for first in (0, 4)]
        inside = [len(cells_ & node[rank // 4]) for rank, cells_ in enumerate(wanted)]
        through = [len(cells_ - node[rank // 4]) for rank, cells_ in enumerate(wanted)]
        assert ways.loads[0][0, 0] == pytest.approx(max(inside) / 64)
        assert ways.loads[1][0, 0] == pytest.approx(max(sum(through[:4]), sum(through[4:])) / 64)


def cells(candidate: Candidate, tensor: str, rank: int) -> set[tuple[int, int]]:
    """Cells of an 8 x 8 grid that a device has."""
    spread = candidate.spread[tensor]
    rows, columns = ([slice_ * 8 // held.count + part for slice_ in held.held(rank)
                      for part in range(8 // held.count)]
                     for held in (spread.rows, spread.columns))  # fmt: skip
    return set(product(rows, columns))


def test_the_paper_s_mlp_moves_half_between_activation_and_fc2() -> None:
    """fc1 {K,P2x2} -> relu {D,S,D} -> fc2 {N,P2x2}: 0, 0.5 forward; 0.5, 0 backward."""
    fc1, relu, fc2 = (ends_of("linear", "K2,P2x2"), ends_of("activation", "K2,M2,K2"),
                      ends_of("linear", "N2,P2x2"))  # fmt: skip
    assert moved(fc1.output, relu.input) == 0
    assert moved(relu.output, fc2.input) == 0.5
    assert moved(fc2.input_gradient, relu.output) == 0.5
    assert moved(relu.output, fc1.output) == 0
