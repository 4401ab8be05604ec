"""Costs of linear operators: bytes are those of the formulas, products and transfers overlap."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from planner_cases import TWO_LEVELS, byte_a_second, cluster

from primepar.partition.primepar import PrimePar
from primepar.partition.registry import parse_sequence
from primepar.plan.cluster import Cluster, Link, load_cluster
from primepar.plan.cost.candidate import Candidate, whole
from primepar.plan.cost.linear import Cost, Training, cost_key, linear_cost
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.search.sequence_space import SequenceSpace
from primepar.schedule.operators import Linear
from primepar.schedule.sequence import Element

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
