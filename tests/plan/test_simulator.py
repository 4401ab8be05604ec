"""The simulator: closed formulas met exactly, shared links, overlap, counts of the emulator.

The simulator refuses what would never end, and what it cannot time, in one line.
"""

from __future__ import annotations

from fractions import Fraction

import pytest
from msgspec.structs import replace
from simulator_cases import (
    BANDWIDTH,
    INSIDE,
    ITEM,
    LATENCY,
    NODES,
    OUTSIDE,
    cluster,
    exactly,
    program,
)

from primepar.errors import ClusterError, DeadlockError, MismatchError, PrimeParError, ProgramError
from primepar.partition.registry import parse_sequence
from primepar.plan.cluster import Link, Rate, load_cluster
from primepar.plan.simulator.run import Simulation, simulate
from primepar.reference.check import memories
from primepar.reference.emulator.executor import emulate
from primepar.schedule import Linear, lower
from primepar.schedule.events import Event
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Compute,
    Evict,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Program,
    Recv,
    Reduce,
    ReduceScatter,
    Send,
    Wait,
)

SEQUENCES = ("K2", "N2", "M3", "B2,K2", "P2x2", "K2,P2x2", "S2x2", "Ks2,Ns2", "T2x2x2", "Os3x3")


def lowered(text: str, size: int = 24) -> Program:
    sequence = parse_sequence(text)
    batch = {"B": size} if "B" in sequence.grid else {}
    return lower(sequence, Linear(M=size, N=size, K=size, **batch))


def add(block: str = "x[0]") -> Compute:
    """Passes two blocks through memory, 8 bytes an element and so 2 seconds."""
    return Compute((block,), "y[0]")


# Closed formulas


def test_a_message_takes_its_latency_and_its_bytes() -> None:
    run = exactly(program([Send(1, "x[0]")], [Recv(0, "x[0]")], x=10), cluster())
    assert run.seconds == LATENCY + 10 * ITEM / BANDWIDTH == 8
    assert [(event.start, event.end) for event in run.events] == [(0, 8), (0, 8)]


def test_a_message_begins_when_both_ends_are_posted() -> None:
    run = exactly(
        program([Send(1, "x[0]")], [add("z[0]"), Recv(0, "x[0]")], x=10, y=1, z=1), cluster()
    )
    assert run.seconds == 2 + 8
    assert [float(seconds) for seconds in run.computing] == [0, 2]


GROUP = (0, 1, 2, 3)
BYTES = Fraction(12 * ITEM)
COLLECTIVES: dict[str, tuple[Instruction, Fraction]] = {
    "all_reduce": (AllReduce(GROUP, block="x[0]"), 6 * LATENCY + BYTES * 3 / 2 / BANDWIDTH),
    "all_gather": (
        AllGather(GROUP, block="x[0]", blocks=("x[0]", "a[0]", "b[0]", "c[0]")),
        3 * LATENCY + 3 * BYTES / BANDWIDTH,
    ),
    "reduce_scatter": (
        ReduceScatter(GROUP, blocks=("x[0]", "a[0]", "b[0]", "c[0]"), block="d[0]"),
        3 * LATENCY + 3 * BYTES / BANDWIDTH,
    ),
    "broadcast": (Broadcast(GROUP, block="x[0]", root=2), 3 * LATENCY + BYTES / BANDWIDTH),
    "reduce": (Reduce(GROUP, block="x[0]", root=2), 3 * LATENCY + BYTES / BANDWIDTH),
    "all_to_all": (
        AllToAll(GROUP, blocks=("x[0]", "a[0]", "b[0]", "c[0]"),
                 into=("d[0]", "e[0]", "f[0]", "g[0]")),
        LATENCY + 3 * BYTES / BANDWIDTH,
    ),
    "barrier": (Barrier(GROUP), LATENCY),
}  # fmt: skip


LATENCIES = {"all_reduce": 6, "all_to_all": 1, "barrier": 1}
"""Latencies of those that take other than 3."""


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_collective_takes_the_time_of_its_algorithm(name: str) -> None:
    node, expected = COLLECTIVES[name]
    called = program(*[[node]] * 4, **dict.fromkeys("abcdefgx", 12))
    run = exactly(called, cluster())
    assert run.seconds == expected
    in_bytes = expected - LATENCIES.get(name, 3) * LATENCY
    assert all(port.busy <= in_bytes for port in run.traffic)
    assert max((port.busy for port in run.traffic), default=0) == in_bytes


def test_a_collective_of_one_takes_nothing() -> None:
    run = exactly(program([AllReduce((0,), block="x[0]")], x=12), cluster())
    assert (run.seconds, run.sent, run.traffic) == (0, [0], [])


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("side", [2, 24])
def test_forward_of_p2x2_takes_the_longer_of_product_and_hops(side: int, overlap: bool) -> None:
    forward = lower(parse_sequence("P2x2"), Linear(side, side, side), phases=("forward",))
    block = Fraction(side // 2) ** 2
    product = 2 * (side // 2) ** 3 + 3 * block * ITEM / 4
    hops = LATENCY + 2 * block * ITEM / BANDWIDTH  # I and W leave by one port
    seconds = exactly(forward, cluster(overlap=overlap)).seconds
    assert seconds == product + (max(product, hops) if overlap else product + hops)


def test_an_operation_starts_with_a_launch() -> None:
    one = program([add(), add()], x=1, y=1)
    assert exactly(one, cluster(launch=0.5)).seconds == 2 * (2 + Fraction(1, 2))


# Shared links


def test_messages_through_one_port_share_it_until_one_ends() -> None:
    """Out of one node go 32 and 96 bytes: 8 s at half of 8 bytes a second, then 64 at all of it."""
    two = program(
        [Send(2, "x[0]")], [Send(3, "y[0]")], [Recv(0, "x[0]")], [Recv(1, "y[0]")], x=8, y=24
    )
    run = exactly(two, NODES)
    ends = {event.rank: event.end for event in run.events}
    assert ends == {0: 3 + 8, 2: 3 + 8, 1: 3 + 8 + 8, 3: 3 + 8 + 8}
    assert run.seconds == 3 + 8 + 8
    went = [(port.level, port.first, port.devices, port.out, port.bytes, port.busy)
            for port in run.traffic]  # fmt: skip
    assert went == [(1, 0, 2, True, 128, 16), (1, 2, 2, False, 128, 16)]


def test_a_port_that_is_not_shared_is_each_device_s_own() -> None:
    unshared = replace(NODES, links=(INSIDE, replace(OUTSIDE, shared=False)))
    two = program(
        [Send(2, "x[0]")], [Send(3, "y[0]")], [Recv(0, "x[0]")], [Recv(1, "y[0]")], x=8, y=24
    )
    assert exactly(two, unshared).seconds == 3 + 96 / BANDWIDTH


def test_the_two_ways_of_a_link_do_not_share() -> None:
    both = [Group((Send(1, "x[0]"), Recv(1, "y[0]"))), Group((Send(0, "y[0]"), Recv(0, "x[0]")))]
    run = exactly(program([both[0]], [both[1]], x=10, y=10), cluster())
    assert run.seconds == LATENCY + 40 / BANDWIDTH


def test_a_message_that_comes_later_slows_the_first_one_down() -> None:
    """After 4 s 16 of 96 bytes are gone; then 32 of each go in 8 s, and the last 48 in 6 s."""
    late = program(
        [Send(2, "x[0]")],
        [add("z[0]"), Send(3, "w[0]")],
        [Recv(0, "x[0]")],
        [Recv(1, "w[0]")],
        x=24, w=8, y=1, z=1,
    )  # fmt: skip
    ends = {event.rank: event.end for event in exactly(late, NODES).events}
    assert ends == {0: 3 + 2 + 8 + 6, 2: 3 + 2 + 8 + 6, 1: 3 + 2 + 8, 3: 3 + 2 + 8}


def test_a_ring_over_two_nodes_leaves_each_once() -> None:
    """Also where its group lists the ranks in another order; the slowest hop sets the pace."""
    for group in ((0, 1, 2, 3), (0, 2, 1, 3)):
        ring: list[Instruction] = [AllReduce(group, block="x[0]")]
        run = exactly(program(*[ring] * 4, x=12), NODES)
        assert run.seconds == 6 * 3 + Fraction(72, 8)
        assert sum(port.bytes for port in run.traffic if port.level == 1 and port.out) == 2 * 72


def test_a_message_alone_goes_no_faster_than_one_stream() -> None:
    """Two share the port, and need no more than it has; one alone reaches 5 of its 8."""
    slow = replace(NODES, links=(INSIDE, replace(OUTSIDE, stream=5)))
    both: list[list[Instruction]] = [
        [Send(2, block="x[0]", tag=0)], [Send(3, block="y[0]", tag=0)],
        [Recv(0, block="x[0]", tag=0)], [Recv(1, block="y[0]", tag=0)],
    ]  # fmt: skip
    run = exactly(program(*both, x=10, y=25), slow)
    assert run.seconds == 3 + Fraction(2 * 40, 8) + Fraction(100 - 40, 5)


# The emulator


@pytest.mark.parametrize("text", ["P2x2", "P4x4", "K2,P2x2", "Os3x3"])
def test_with_units_of_time_everything_ends_when_it_does_on_emulated_devices(text: str) -> None:
    """The emulator's logical clock has 1 for a product and 1 for a message, whatever their size."""
    forward = lower(parse_sequence(text), Linear(12, 12, 12), phases=("forward",))
    link = Link(joins=16, latency=1, bandwidth=1e30, shared=False)
    on = replace(
        cluster(link, launch=1, devices=16), memory_bandwidth=1e30,
        rates={"float32": Rate(1e30, 1e30)},
    )  # fmt: skip
    run, emulated = exactly(forward, on), emulate(forward, memories(forward))
    kinds = ("compute", "isend", "irecv")
    assert {event.op for event in run.events} - {"wait"} <= set(kinds)
    assert ended(run.events, kinds) == ended(emulated.events, kinds) != []


def ended(events: list[Event], kinds: tuple[str, ...]) -> list[tuple[int, str, str, int]]:
    """When what ended, on which rank."""
    chosen = (event for event in events if event.op in kinds)
    return sorted((event.rank, event.op, event.block, round(event.end)) for event in chosen)


# Counts


@pytest.mark.parametrize("text", SEQUENCES)
def test_what_leaves_and_what_is_held_is_what_the_emulator_counts(text: str) -> None:
    step = lowered(text)
    emulated = emulate(step, memories(step))
    run = simulate(step, load_cluster("torus-4x4"), "bfloat16")
    assert run.sent == [2 * item for item in emulated.sent]
    assert run.peak == [2 * item for item in emulated.peak]
    for way in (True, False):
        total = sum(item.bytes for item in run.traffic if item.out == way)
        assert total == 2 * sum(emulated.sent)


def test_a_block_that_is_allocated_is_not_there_before() -> None:
    nodes: list[Instruction] = [add(), Free("x[0]"), Alloc("z[0]"), add("z[0]")]
    run = exactly(program(nodes, x=10, y=1, z=10), cluster())
    assert run.peak == [(10 + 1) * ITEM]


@pytest.mark.parametrize("text", SEQUENCES)
def test_products_are_counted_once_for_each_multiplication(text: str) -> None:
    step = lowered(text)
    batch = 24 if text.startswith("B") else 1
    run = simulate(step, load_cluster("v100-8x4"), "float32")
    assert sum(run.operations) == 3 * 2 * 24**3 * batch


# Bounds


@pytest.mark.parametrize("text", SEQUENCES)
@pytest.mark.parametrize("overlap", [True, False])
def test_a_run_is_no_shorter_than_its_products_and_its_waits(text: str, overlap: bool) -> None:
    step, on = lowered(text), replace(load_cluster("v100-8x4"), overlap=overlap)
    run = simulate(step, on, "float32")
    free = [replace(link, latency=0, bandwidth=1e30, shared=False) for link in on.links]
    path = simulate(step, replace(on, links=tuple(free)), "float32").seconds
    assert run.seconds >= path * (1 - 1e-9)
    assert path >= max(run.computing) * (1 - 1e-9)


@pytest.mark.parametrize("text", SEQUENCES)
def test_overlap_never_costs(text: str) -> None:
    step, on = lowered(text), load_cluster("v100-8x4")
    with_, without = (
        simulate(step, replace(on, overlap=overlap), "float32", fractions=True).seconds
        for overlap in (True, False)
    )
    assert with_ <= without


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("text", ["P2x2", "S2x2", "K2,P2x2"])
def test_products_follow_one_another_and_meet_transfers_only_with_overlap(
    text: str, overlap: bool
) -> None:
    on = replace(load_cluster("v100-8x4"), overlap=overlap)
    run = simulate(lowered(text), on, "float32", fractions=True)
    assert met(run, "compute") == 0
    assert (met(run, "communication") > 0) == overlap


def met(run: Simulation, track: str) -> int:
    """Pairs of a product and an event of a track on one rank that are at one time."""
    products = [event for event in run.events if event.track == "compute"]
    others = [event for event in run.events if event.track == track and event.op != "wait"]
    return sum(
        a.rank == b.rank and a is not b and max(a.start, b.start) < min(a.end, b.end)
        for a in products
        for b in others
    )


@pytest.mark.parametrize("text", ["K2,P2x2", "S2x2"])
def test_a_run_is_the_same_again_and_floats_are_near_the_fractions(text: str) -> None:
    step, on = lowered(text), load_cluster("v100-8x4")
    run = simulate(step, on, "float32")
    assert simulate(step, on, "float32") == run
    exact = simulate(step, on, "float32", fractions=True)
    assert isinstance(exact.seconds, Fraction)
    assert run.seconds == pytest.approx(float(exact.seconds), rel=1e-12)


def test_both_ends_of_a_message_are_at_one_time() -> None:
    run = simulate(lowered("P2x2"), load_cluster("h200-8"), "float32")
    sent = sorted((event.rank, event.peer, event.start, event.end) for event in run.events
                  if event.op == "isend")  # fmt: skip
    received = sorted((event.peer, event.rank, event.start, event.end) for event in run.events
                      if event.op == "irecv")  # fmt: skip
    assert sent == received != []


def test_posted_messages_go_in_any_order_of_waits() -> None:
    post: list[Instruction] = [IRecv(1, "y[0]", request="b"), ISend(1, "x[0]", request="a")]
    other: list[Instruction] = [ISend(0, "y[0]", request="d"), IRecv(0, "x[0]", request="c")]
    waits = [Wait("a"), Wait("b")], [Wait("d"), Wait("c")]
    for overlap in (True, False):
        run = exactly(
            program([*post, *waits[0]], [*other, *waits[1]], x=10, y=10), cluster(overlap=overlap)
        )
        assert run.seconds == LATENCY + 40 / BANDWIDTH


def refusal(wrong: Program, kind: type[PrimeParError], overlap: bool = True) -> str:
    with pytest.raises(kind) as caught:
        simulate(wrong, cluster(overlap=overlap), "float32")
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("overlap", [True, False])
def test_sends_head_on_wait_without_end(overlap: bool) -> None:
    wrong = program(
        [Send(1, "x[0]"), Recv(1, "y[0]")], [Send(0, "y[0]"), Recv(0, "x[0]")], x=1, y=1
    )
    assert refusal(wrong, DeadlockError, overlap) == (
        "expected every rank to end, got some that never do: ranks 0 and 1 wait for one another in "
        "a cycle: start both directions of an exchange together, in a group or by isend and irecv "
        "before the waits"
    )


def test_ends_that_do_not_agree_are_refused_in_the_words_of_verify() -> None:
    tags = program([Send(1, "x[0]", tag=1)], [Recv(0, "y[0]")], x=1, y=1)
    assert refusal(tags, MismatchError) == (
        "rank 1, instruction 0 (recv y[0] <- 0): expected tag 0, got tag 1 from rank 0, "
        "instruction 0 (send x[0] -> 1): messages match in order and tags do not select them, so "
        "post them in one order on both ranks"
    )
    leaked = program([ISend(1, "x[0]", request="a")], [Recv(0, "x[0]")], x=1)
    assert refusal(leaked, MismatchError) == (
        "rank 0, instruction 0 (isend x[0] -> 1): expected a wait for 'a', got none before the "
        "request is posted again or the program ends: add the wait"
    )


def test_a_block_of_unknown_size() -> None:
    assert refusal(program([Send(1, "x")], [Recv(0, "x")]), ProgramError) == (
        "expected the elements of x, which its time depends on, got none: "
        "write the shape of the operator, or the cuts of its tensor in tensors"
    )


def test_a_transfer_to_a_host() -> None:
    assert refusal(program([Evict("x[0]")], x=1), ProgramError) == (
        "programs[0][0]: expected no transfer to or from a host, as cluster a small one has no "
        "host_bandwidth, got evict x[0]: leave it out, or write host_bandwidth = 2.5e10 in the "
        "cluster's file"
    )


def test_more_ranks_than_devices() -> None:
    assert refusal(program(*[[]] * 5), ClusterError) == (
        "expected at most the 4 devices of the cluster a small one, got 5 ranks: take a larger "
        "cluster"
    )


def test_a_data_type_that_the_cluster_has_no_rate_of() -> None:
    with pytest.raises(ClusterError) as caught:
        simulate(program([]), cluster(), "float16")
    assert str(caught.value) == (
        "expected a data type that the cluster a small one has rates of (float32), got float16: "
        "take one of these, or add [rates.float16]"
    )


def test_a_message_to_oneself_is_counted_and_ends() -> None:
    wrong = program(
        [ISend(0, "x[0]", request="a"), IRecv(0, "y[0]", request="b"), Wait("a"), Wait("b")],
        x=2, y=2,
    )  # fmt: skip
    assert simulate(wrong, replace(cluster(), overlap=False), "float32").sent == [2 * ITEM]
