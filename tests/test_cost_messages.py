"""Several messages at once, and sums that are coalesced: what they cost besides their bytes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec.structs import replace
from planner_cases import cluster

from primepar.operators.single_operator import lower_move
from primepar.partition import parse_sequence
from primepar.plan.cluster import Link
from primepar.plan.cost.candidate import candidate_of
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.linear import Training, linear_cost
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.profile.fit import Sample, fit
from primepar.plan.simulator.run import simulate
from primepar.schedule.lowering import layout
from primepar.schedule.movement import Movement
from primepar.schedule.operators import Linear

LATENCY, BANDWIDTH, GAP = 2.0**-10, 2.0**20, 2.0**-8
LINK = Link(4, LATENCY, BANDWIDTH, False, gap=GAP)
SIZE = 64 * 64 * 4


@pytest.mark.parametrize(
    ("source", "target", "messages", "share"),
    [("M4", "K4", 3, 3 / 16), ("M4", "M2,K2", 1, 1 / 8), ("M4", "K2,N2", 3, 3 / 8),
     ("N4", "M4", 0, 0.0)],
)  # fmt: skip
def test_each_message_after_the_first_takes_the_gap(
    source: str, target: str, messages: int, share: float
) -> None:
    """By the cost model, and by the simulator of the program that is executed."""
    expected = LATENCY + (messages - 1) * GAP + share * SIZE / BANDWIDTH if messages else 0.0
    sequences, machine = [parse_sequence(source), parse_sequence(target)], cluster(LINK)
    layouts = Layouts(ClusterLinks(machine, 2))
    before, after = (layouts.number(candidate_of(text, "O").spread["O"]) for text in sequences)
    assert before is not None
    assert after is not None
    assert layouts.ways([before], [after]).seconds(SIZE).tolist() == [[expected]]
    ends = [layout(Movement(text), "forward", "O", last=True) for text in sequences]
    program = lower_move(ends[0], ends[1], (64, 64))
    assert simulate(program, machine, "float32", fractions=True).seconds == Fraction(expected)


def test_hops_of_a_step_are_messages_of_a_port() -> None:
    """P2x2 sends a block of I and one of W in a step; without a gap that is one latency."""
    links = ClusterLinks(cluster(LINK), 2)
    bytes_ = SIZE / BANDWIDTH
    assert links.transfer({0: (SIZE, 2)}) == LATENCY + GAP + bytes_
    assert links.transfer({0: (SIZE, 1)}) == LATENCY + bytes_
    assert links.transfer({}) == links.transfer({0: (0.0, 0)}) == 0.0


def test_small_gradients_share_the_start_of_a_call() -> None:
    """As the pass that coalesces reductions sends them, in buckets of 65,536 elements."""
    training = Training(ClusterLinks(cluster(replace(LINK, gap=0.0)), 2), "float32", 8, 8)
    large, small = (training.parameter(elements, elements, (0, 1), (0, 1))["reduction"]
                    for elements in (2.0**18, 2.0**13))  # fmt: skip
    sent = 2 * 3 / 4 * 4 / BANDWIDTH
    assert large == 6 * LATENCY + 2**18 * sent
    assert small == 6 * LATENCY / 8 + 2**13 * sent


def test_a_profile_distinguishes_the_gap_from_latency_and_bandwidth() -> None:
    samples = [
        Sample("hop", "", {"messages": 1.0, "gaps": gaps, "bytes": (gaps + 1) * size},
               1e-4 + 2e-4 * gaps + (gaps + 1) * size * 1e-9)
        for size in (1e3, 1e5, 1e6) for gaps in (0.0, 2.0)
    ]  # fmt: skip
    seconds = fit(samples).seconds
    assert seconds["gaps"] == pytest.approx(2e-4)
    assert seconds["messages"] == pytest.approx(1e-4)
    assert seconds["bytes"] == pytest.approx(1e-9)


@pytest.mark.parametrize(("sequence", "fewer"), [("S2x2", 4), ("P2x2", 0), ("Os2x2", 0)])
def test_without_overlap_a_device_waits_for_its_own_blocks_alone(sequence: str, fewer: int) -> None:
    """Of SUMMA every device receives one block of I and one of W, in either of two steps.

    Device (1, 1) takes both in the first step, device (0, 0) in the second one. If all wait for the
    longest in every step, that is four blocks in place of two. In backward and in gradient it is
    two in place of one. In rings all devices receive the same in every step.
    """
    candidate = candidate_of(parse_sequence(sequence))
    lockstep, own = (
        linear_cost(Training(ClusterLinks(cluster(Link(4, 0.0, 1.0, False), overlap=overlap), 2),
                             "float32", 4, 1), Linear(M=4, N=4, K=4), candidate)
        for overlap in (True, False)
    )  # fmt: skip
    block = 2 * 2 * 4
    assert lockstep.communication - own.communication == pytest.approx(fewer * block)
