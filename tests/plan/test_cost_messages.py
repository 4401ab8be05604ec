"""Several messages at once, and sums that are coalesced: what they cost besides their bytes."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import pytest
from msgspec.structs import replace
from planner_cases import cluster

from primepar.operators.single_operator import lower_move
from primepar.partition import parse_sequence
from primepar.plan.cluster import Collective, Link
from primepar.plan.cost.candidate import candidate_of
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.linear import Training, linear_cost
from primepar.plan.cost.links import ClusterLinks, PortLoad
from primepar.plan.profile.cluster_file import Sample, fit
from primepar.plan.simulator.run import simulate
from primepar.schedule.lowering import layout
from primepar.schedule.movement import Movement
from primepar.schedule.operators import Linear
from primepar.schedule.program import AllGather, AllReduce, Instruction, Program
from primepar.schedule.signature import Tensor

LATENCY, BANDWIDTH, GAP = 2.0**-10, 2.0**20, 2.0**-8
LINK = Link(4, LATENCY, BANDWIDTH, False, gap=GAP)
SIZE = 64 * 64 * 4


@pytest.mark.parametrize("stream", [None, BANDWIDTH / 2, BANDWIDTH / 8])
@pytest.mark.parametrize(
    ("source", "target", "messages", "share"),
    [("M4", "K4", 3, 3 / 16), ("M4", "M2,K2", 1, 1 / 8), ("M4", "K2,N2", 3, 3 / 8),
     ("N4", "M4", 0, 0.0)],
)  # fmt: skip
def test_each_message_after_the_first_takes_the_gap_and_none_gets_more_than_its_stream(
    source: str, target: str, messages: int, share: float, stream: float | None
) -> None:
    """By the cost model, and by the simulator of the program that is executed."""
    rate = min(BANDWIDTH, messages * (stream or BANDWIDTH))
    gaps = 0.0 if stream else GAP  # with both, messages that start late do not all share
    expected = LATENCY + (messages - 1) * gaps + share * SIZE / rate if messages else 0.0
    machine = cluster(replace(LINK, stream=stream, gap=gaps))
    sequences = [parse_sequence(source), parse_sequence(target)]
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
    assert links.transfer({0: PortLoad(SIZE, SIZE / 2, 2)}) == LATENCY + GAP + bytes_
    assert links.transfer({0: PortLoad(SIZE, SIZE, 1)}) == LATENCY + bytes_
    assert links.transfer({}) == links.transfer({0: PortLoad(0.0, 0.0, 0)}) == 0.0


WAYS: tuple[tuple[Collective, Callable[..., Instruction]], ...] = (
    ("all_reduce", lambda group: AllReduce(group, block="x[0]")),
    ("all_gather", lambda group: AllGather(
        group, block="x[0]", blocks=tuple(f"x[{rank}]" for rank in group))),
)  # fmt: skip


@pytest.mark.parametrize("inner", [2.0**20, 2.0**24])
@pytest.mark.parametrize("outer", [2.0**19, 2.0**22])
@pytest.mark.parametrize("bits", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_a_ring_is_as_slow_as_the_slowest_level_that_it_crosses(
    inner: float, outer: float, bits: tuple[int, ...]
) -> None:
    """Priced as simulated, where a level within is slower than one around it, or is shared."""
    machine = cluster(Link(2, LATENCY, inner, False), Link(4, 2 * LATENCY, 2.0**21, False),
                      Link(8, LATENCY, outer, True, stream=outer / 4))  # fmt: skip
    links, blocks = ClusterLinks(machine, 3), 2**12
    weights = [4 >> bit for bit in bits]
    for name, call in WAYS:
        programs = []
        for rank in range(8):
            base = rank & ~sum(weights)
            members = sorted(other for other in range(8) if other & ~sum(weights) == base)
            programs.append((call(tuple(members)),))
        tensors = {"x": Tensor((tuple(range(0, 9 * blocks, blocks)),))}
        program = Program("primepar-program", 1, 8, programs=tuple(programs), tensors=tensors)
        priced = getattr(links, name)(bits, 4 * blocks)
        assert priced == pytest.approx(simulate(program, machine, "float32").seconds, rel=1e-12)


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
