"""Costs of linear operators: bytes are those of the formulas, products and transfers overlap.

Several messages at once, and sums that are coalesced: what they cost besides their bytes.

The collectives that the cost model counts are those of the program, to the byte.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from math import prod

import pytest
from msgspec.structs import replace
from planner_cases import TWO_LEVELS, byte_a_second, cluster

from primepar.operators.single_operator import lower_move
from primepar.partition.primepar import PrimePar
from primepar.partition.registry import parse_sequence
from primepar.plan.cluster import Cluster, Collective, Link, Passing, load_cluster
from primepar.plan.cost.candidate import Candidate, candidate_of, whole
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.linear import Cost, Training, cost_key, linear_cost
from primepar.plan.cost.links import ClusterLinks, PortLoad
from primepar.plan.cost.sweeps import moving, sent
from primepar.plan.profile import Sample, fit
from primepar.plan.search.sequence_space import SequenceSpace
from primepar.plan.simulator.run import simulate
from primepar.schedule import lower
from primepar.schedule.lowering import layout
from primepar.schedule.movement import Movement
from primepar.schedule.operators import Linear
from primepar.schedule.program import AllGather, AllReduce, Instruction, Program, ReduceScatter
from primepar.schedule.sequence import Element
from primepar.schedule.signature import Tensor

OPERATOR = Linear(M=32, N=64, K=96)


def candidate(text: str) -> Candidate:
    sequence = whole()
    for element in parse_sequence(text).elements:
        sequence = sequence.then(element)
    return sequence


def cost(text: str, operator: Linear = OPERATOR, bits: int = 0) -> Cost:
    sequence = candidate(text)
    bits = bits or sum(len(places) for _, places in sequence.places)
    return linear_cost(byte_a_second(bits), operator, sequence)


@pytest.mark.parametrize(
    "text",
    ["M2", "N2", "K2", "Ks2", "Ks4", "Ns4", "C2x2x2", "Cr2x2x2", "D2x2x2", "P2x2", "P4x4",
     "Os2x2", "Is2x2", "Ws2x2", "Os4x4", "S1x2", "M4", "G2x1x2", "Gi2x2x1", "Gw4x2x1", "Gr2x2x2"],
)  # fmt: skip
def test_the_bytes_of_a_primitive_are_those_of_its_formula(text: str) -> None:
    sequence = parse_sequence(text)
    sent = sequence.elements[0].sent(OPERATOR)
    assert sent is not None
    assert cost(text).seconds == pytest.approx(4 * float(sent), rel=1e-12)


def test_only_the_space_of_grids_has_grids() -> None:
    texts = {sequence.text for sequence in SequenceSpace.whole("grids", 2).linear}
    others = {sequence.text for sequence in SequenceSpace.whole("all", 2).linear}
    assert {"G2x2x1", "Gi2x2x1", "Gw2x2x1", "Gr2x2x1", "M2,G2x1x1"} <= texts - others
    assert others < texts


@pytest.mark.parametrize("side", [2, 4])
def test_a_broadcast_takes_its_step_though_the_one_that_sends_gets_nothing(side: int) -> None:
    sent = parse_sequence(f"S{side}x{side}").elements[0].sent(OPERATOR)
    assert sent is not None
    seconds = 4 * float(sent) * side / (side - 1)
    assert cost(f"S{side}x{side}").seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("K4", 2 * 3 / 4 * 32 * 64),
        ("K2,N2", 2 * 1 / 2 * (32 * 64 / 2 + 32 * 96 / 2)),
        ("M2,K2", 2 * 1 / 2 * (64 * 96 / 2 + 32 * 64 / 2)),
        # P on half of K, and dI summed over the two halves
        ("K2,P2x2", (2 * (32 * 64 + 32 * 48) + 4 * 64 * 48) / 4 + 32 * 64 / 4),
        ("P2x2,K2", (2 * (32 * 64 + 32 * 48) + 4 * 64 * 48) / 4 + 32 * 64 / 4),
    ],
)
def test_cuts_make_what_the_rest_moves_smaller_and_sum_over_their_own_devices(
    text: str, elements: float
) -> None:
    assert cost(text).seconds == pytest.approx(4 * elements, rel=1e-12)


def test_a_step_takes_the_longer_of_its_products_and_its_hops() -> None:
    link = Link(4, 0.0, 1.0, False)
    operator = Linear(M=2, N=2, K=2)
    # P2x2, one element a block: the hops of each step, with one or two products of 100 s
    hops = {"forward": (2, 0), "backward": (2, 1), "gradient": (2, 1)}
    for overlap, seconds in ((True, 600.0), (False, 600.0 + 4 * sum(map(sum, hops.values())))):
        links = ClusterLinks(cluster(link, seconds=100.0, overlap=overlap), 2)
        priced = linear_cost(Training(links, "float32", 1, 2), operator, candidate("P2x2"))
        assert priced.seconds == pytest.approx(seconds)


def test_memory_is_what_is_kept_what_is_stashed_and_the_transient_rest() -> None:
    weight, given, made = 64 * 96 / 4, 32 * 64, 32 * 96 / 4
    column = cost("K4")
    # float32: a weight with its gradient and two moments is 16 bytes; I is whole on every device
    assert column.kept == 16 * weight + 4 * given
    assert column.running == 4 * max(made, given + made)
    cannon = cost("P2x2")
    assert cannon.kept == 16 * weight + 4 * given / 4
    # two buffers of I and of W, and O; or of dO and of W, and dI; or of dO, I, and dW's last hop
    blocks = {"I": given / 4, "W": weight, "O": made}
    forward = blocks["I"] + blocks["W"] + blocks["O"]
    backward = 2 * blocks["O"] + blocks["W"] + blocks["I"]
    gradient = blocks["I"] + 2 * blocks["O"] + blocks["W"]
    assert cannon.running <= 4 * max(forward, backward, gradient)
    assert cannon.running >= 4 * max(forward, backward)


def test_a_tied_weight_has_a_copy_and_a_gradient_here_and_its_state_elsewhere() -> None:
    priced = linear_cost(byte_a_second(2), OPERATOR, candidate("K4"), tied=True)
    assert priced.kept == 8 * 64 * 96 / 4 + 4 * 32 * 64


class Mine(PrimePar):
    """A primitive of a user's."""

    label = "Mine"


def test_a_primitive_that_nobody_registered_is_costed_by_its_map() -> None:
    mine = whole().then(Element(Mine(), (2,)))
    training = Training(ClusterLinks(TWO_LEVELS, 2), "float32", 4, 8)
    assert linear_cost(training, OPERATOR, mine) == linear_cost(
        training, OPERATOR, candidate("P2x2")
    )


def test_sequences_with_equal_keys_cost_the_same() -> None:
    training = Training(ClusterLinks(TWO_LEVELS, 3), "float32", 4, 8)
    costs: dict[object, set[Cost]] = {}
    for sequence in SequenceSpace.whole("all", 3).linear:
        key = cost_key(training.links, sequence)
        costs.setdefault(key, set()).add(linear_cost(training, OPERATOR, sequence))
    assert {len(distinct) for distinct in costs.values()} == {1}
    assert len(costs) < len(SequenceSpace.whole("all", 3).linear)


def test_a_shared_link_is_as_much_slower_as_rings_go_through_it() -> None:
    links = ClusterLinks(TWO_LEVELS, 4)
    assert links.levels == (1, 1, 0, 0)
    # 4 rings leave each node at once, or 2, or one that goes through all devices of the nodes
    assert [links.streams(bits, 1) for bits in ((0,), (0, 2), (0, 2, 3))] == [4, 2, 1]
    assert links.all_reduce((0,), 1e6) == pytest.approx(2 * 5e-6 + 1e6 * 4 / 2e8)
    assert links.all_reduce((2,), 1e6) == pytest.approx(2 * 1e-6 + 1e6 / 1e9)
    assert links.all_reduce((), 1e6) == 0


def test_a_ring_alone_goes_no_faster_than_one_stream() -> None:
    inside, outside = TWO_LEVELS.links
    slow = ClusterLinks(replace(TWO_LEVELS, links=(inside, replace(outside, stream=1.5e8))), 4)
    assert slow.all_reduce((0, 2, 3), 1e6) == pytest.approx(14 * 5e-6 + 7 / 4 * 1e6 / 1.5e8)
    two_share = 6 * 5e-6 + 3 / 2 * 1e6 * 2 / 2e8
    assert slow.all_reduce((0, 2), 1e6) == pytest.approx(two_share)


def mlp(cluster: Cluster, fc1: str, fc2: str) -> float:
    training = Training(ClusterLinks(cluster, 3), "float32", 8, 2048)
    hidden, ffn = 12288, 49152
    up, down = Linear(M=training.rows, N=hidden, K=ffn), Linear(M=training.rows, N=ffn, K=hidden)
    return sum(linear_cost(training, shape, candidate(text)).seconds
               for shape, text in ((up, fc1), (down, fc2)))  # fmt: skip


def test_the_paper_s_mlp_on_eight_devices_of_its_cluster() -> None:
    """Figure 9: OPT-175B, batch 8; PrimePar's plan takes 0.71 of Megatron's time."""
    v100 = load_cluster("v100-8x4")
    texts = [sequence.text for sequence in SequenceSpace.whole("paper", 3).linear]
    assert min(texts, key=lambda text: mlp(v100, text, "K8")) == "K2,P2x2"
    assert min(texts, key=lambda text: mlp(v100, "K8", text)) == "N2,P2x2"
    ratio = mlp(v100, "K2,P2x2", "N2,P2x2") / mlp(v100, "M2,K4", "M2,N4")
    assert ratio == pytest.approx(0.71, rel=0.15)


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


KINDS: dict[str, type[AllGather | AllReduce | ReduceScatter]] = {
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "all_reduce": AllReduce,
}


def priced(text: str) -> Counter[tuple[str, str]]:
    """Elements that a device sends in the collectives that the cost model counts."""
    (element,) = parse_sequence(text).elements
    moved, elements = moving(element), Counter[tuple[str, str]]()
    sizes = {"I": 32 * 64, "W": 64 * 96, "O": 32 * 96}
    levels = (0,) * (moved.devices.bit_length() - 1)
    for phases in moved.phases:
        for stage in moved.stages(phases, levels, (False,)):
            for call in (*stage.gathers, *stage.sums):
                size = sizes[call.tensor.removeprefix("d")]
                elements[call.name, call.tensor] += round(sent(call, size)[0])
    return elements


def executed(text: str) -> Counter[tuple[str, str]]:
    """Elements that a rank sends in the collectives of more than two ranks of the program."""
    program, elements = lower(parse_sequence(text), OPERATOR), Counter[tuple[str, str]]()
    assert program.grid is not None
    for node in program.programs[0]:
        for name, kind in KINDS.items():
            if isinstance(node, kind) and len(node.group) > 2:
                others = len(node.group) - 1
                rounds = 2 / len(node.group) if kind is AllReduce else 1
                tensor = node.block.partition("[")[0]
                grid = next(iter(program.grid.values()))
                dims = {"I": "MN", "W": "NK", "O": "MK"}[tensor.removeprefix("d")]
                size = prod(getattr(OPERATOR, dim) // grid.get(dim, 1) for dim in dims)
                elements[name, tensor] += round(others * rounds * size)
    return elements


@pytest.mark.parametrize(
    "text", ["Ks4", "Ns4", "Ks8", "C2x2x2", "D4x4x4", "S4x4", "P4x4", "Os4x4", "Ks2", "S2x2"]
)
def test_collectives_are_those_of_the_program(text: str) -> None:
    assert priced(text) == executed(text)
    assert bool(executed(text)) == (text in {"Ks4", "Ns4", "Ks8", "D4x4x4"})


def test_blocks_that_arrive_first_are_joined_at_a_price() -> None:
    plain = byte_a_second(1)
    cluster = replace(plain.cluster, operators={"join": Passing(10.0, 4.0)})
    joining = Training(type(plain.links)(cluster, 1), plain.dtype, plain.batch, plain.positions)
    for text in ("M2", "Ks2"):
        before, after = (linear_cost(training, OPERATOR, candidate(text)).seconds
                         for training in (plain, joining))  # fmt: skip
        assert (after > before) == (text == "Ks2")
