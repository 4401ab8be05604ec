"""Every instruction does what the grammar defines, on devices without shared memory."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from primepar.partition import parse_sequence
from primepar.reference import Emulation, check_program, emulate
from primepar.reference.emulator.arithmetic import Arithmetic
from primepar.reference.emulator.contents import Array, Contents
from primepar.schedule import Linear, lower
from primepar.schedule.program import (
    AllGather,
    Alloc,
    AllReduce,
    AllToAll,
    Barrier,
    Broadcast,
    Compute,
    Evict,
    Fetch,
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
from primepar.schedule.signature import Reduction

A, B, C = np.array([1.0, 5.0]), np.array([2.0, 4.0]), np.array([3.0, 0.0])
ALL = (0, 1, 2)


def run(
    *ranks: tuple[Instruction, ...], given: list[Mapping[str, Array]] | None = None
) -> Emulation:
    """Emulate a program, by default with x = A, B, C on the devices."""
    defaults = [{"x": A}, {"x": B}, {"x": C}][: len(ranks)]
    memories = defaults if given is None else given
    initial = tuple(tuple(memory) for memory in memories)
    return emulate(Program("primepar-program", 1, len(ranks), ranks, initial=initial), memories)


def everywhere(instruction: Instruction) -> Emulation:
    return run(*((instruction,),) * 3)


def held(emulation: Emulation) -> list[dict[str, list[float]]]:
    """Memories with plain lists, which compare with ==."""
    return [
        {name: array.tolist() for name, array in memory.items()} for memory in emulation.memories
    ]


def test_a_product_is_added_to_a_sum_that_starts_at_zero() -> None:
    names = ("I[0,0]", "W[0,0]"), ("I[0,1]", "W[1,0]")
    nodes = tuple(
        Compute(names[n], "O[0,0]", "forward", {"M": 0, "N": n, "K": 0}) for n in range(2)
    )
    rng = np.random.default_rng(0)
    memory = {name: rng.integers(-4, 5, (2, 2)).astype(float) for pair in names for name in pair}
    expected = memory["I[0,0]"] @ memory["W[0,0]"] + memory["I[0,1]"] @ memory["W[1,0]"]
    assert np.array_equal(run(nodes, given=[memory]).memories[0]["O[0,0]"], expected)


def test_a_compute_without_a_sub_operator_adds_what_it_reads() -> None:
    emulation = run((Compute(("x", "y"), "z"), Compute(("x",), "z")), given=[{"x": A, "y": B}])
    assert held(emulation)[0]["z"] == [4.0, 14.0]


def test_a_message_copies_a_block_and_replaces_what_had_the_name() -> None:
    emulation = run((Send(1, "x"),), (Recv(0, "x"),))
    assert held(emulation) == [{"x": [1.0, 5.0]}, {"x": [1.0, 5.0]}]


def test_posted_messages_pass_each_other() -> None:
    ranks = [
        (ISend(peer, "x", request="s"), IRecv(peer, "y", request="r"), Wait("r"), Wait("s"))
        for peer in (1, 0)
    ]
    assert [memory["y"] for memory in held(run(*ranks))] == [[2.0, 4.0], [1.0, 5.0]]


def test_a_group_starts_all_its_messages_together() -> None:
    ring = [(Group((Send((rank + 1) % 3, "x"), Recv((rank - 1) % 3, "y"))),) for rank in range(3)]
    assert [memory["y"] for memory in held(run(*ring))] == [[3.0, 0.0], [1.0, 5.0], [2.0, 4.0]]


def test_messages_match_in_order_within_a_communicator_only() -> None:
    sender = (
        ISend(1, "x", request="1"),
        ISend(1, "y", communicator="other", request="2"),
        Wait("1"),
        Wait("2"),
    )
    receiver = (Recv(0, "a", communicator="other"), Recv(0, "b"))
    emulation = run(sender, receiver, given=[{"x": A, "y": B}, {}])
    assert held(emulation)[1] == {"a": [2.0, 4.0], "b": [1.0, 5.0]}


@pytest.mark.parametrize(
    ("reduction", "expected"), [("sum", [6.0, 9.0]), ("max", [3.0, 5.0]), ("min", [1.0, 0.0])]
)
def test_all_reduce_leaves_the_reduction_everywhere(
    reduction: Reduction, expected: list[float]
) -> None:
    emulation = everywhere(AllReduce(ALL, block="x", reduction=reduction))
    assert held(emulation) == [{"x": expected}] * 3


def test_reduce_changes_the_root_alone() -> None:
    emulation = everywhere(Reduce(ALL, block="x", root=1))
    assert held(emulation) == [{"x": [1.0, 5.0]}, {"x": [6.0, 9.0]}, {"x": [3.0, 0.0]}]


def test_broadcast_leaves_the_root_s_block_everywhere() -> None:
    assert held(everywhere(Broadcast(ALL, block="x", root=2))) == [{"x": [3.0, 0.0]}] * 3


def test_all_gather_collects_in_the_order_of_the_group() -> None:
    emulation = everywhere(AllGather((2, 0, 1), block="x", blocks=("a", "b", "c")))
    gathered = {"a": C.tolist(), "b": A.tolist(), "c": B.tolist()}
    assert [{name: memory[name] for name in "abc"} for memory in held(emulation)] == [gathered] * 3


def test_reduce_scatter_gives_each_member_its_own_place() -> None:
    memories = [{"a": A * (rank + 1), "b": B * (rank + 1)} for rank in range(2)]
    node = ReduceScatter((0, 1), blocks=("a", "b"), block="own")
    emulation = run((node,), (node,), given=list(memories))
    assert [memory["own"] for memory in held(emulation)] == [[3.0, 15.0], [6.0, 12.0]]


def test_all_to_all_transposes() -> None:
    memories = [{"a": A, "b": B}, {"a": C, "b": A + C}]
    node = AllToAll((0, 1), blocks=("a", "b"), into=("c", "d"))
    emulation = held(run((node,), (node,), given=list(memories)))
    assert [(memory["c"], memory["d"]) for memory in emulation] == [
        (A.tolist(), C.tolist()),
        (B.tolist(), (A + C).tolist()),
    ]


def test_alloc_makes_zeros_and_free_takes_them_away() -> None:
    emulation = run((Alloc("y"), Compute(("x",), "y"), Free("x")))
    assert held(emulation) == [{"y": [1.0, 5.0]}]


def test_alloc_knows_the_shape_of_a_block_of_the_operator() -> None:
    program = lower(parse_sequence("N2"), Linear(M=2, N=4, K=6))
    alloc = [(Alloc("O[0,0]"), *nodes) for nodes in program.programs]
    program = msgspec.structs.replace(program, programs=tuple(alloc))
    assert Arithmetic(Contents(program), None).zeros("O[0,0]", np.dtype(float)).array.shape == (
        2,
        6,
    )
    assert check_program(program).equal


def test_an_evicted_block_comes_back_as_it_was() -> None:
    away = run((Evict("x"),))
    assert held(away) == [{}]
    assert list(away.hosts[0]) == ["x"]
    assert held(run((Evict("x"), Fetch("x")))) == [{"x": [1.0, 5.0]}]


def test_without_initial_a_block_nobody_wrote_is_where_it_is_first_used() -> None:
    program = Program("primepar-program", 1, 2, ((Send(1, "x"),), (Recv(0, "y"), Fetch("h"))))
    emulation = emulate(program, [{"x": A, "unused": B}, {"h": C}])
    assert held(emulation) == [{"x": [1.0, 5.0]}, {"y": [1.0, 5.0], "h": [3.0, 0.0]}]


def test_a_device_keeps_copies_that_nobody_can_change() -> None:
    mine = np.ones(2)
    emulation = run((), given=[{"x": mine}])
    mine[0] = 7
    assert held(emulation) == [{"x": [1.0, 1.0]}]
    with pytest.raises(ValueError, match="read-only"):
        emulation.memories[0]["x"][0] = 7


# The clock


def test_a_transfer_overlaps_the_product_between_its_post_and_its_wait() -> None:
    nodes = [
        (
            ISend(peer, "W[0,0]", request="s"),
            IRecv(peer, "y", request="r"),
            Compute(("I[0,0]", "W[0,0]"), "O[0,0]", "forward", {"M": 0, "N": 0, "K": 0}),
            Wait("s"),
            Wait("r"),
        )
        for peer in (1, 0)
    ]
    memory = {"I[0,0]": np.ones((2, 2)), "W[0,0]": np.ones((2, 2))}
    events = run(*nodes, given=[memory, memory]).events
    times = {(event.op, event.start, event.end) for event in events if event.rank == 0}
    assert times == {("isend", 0, 1), ("irecv", 0, 1), ("compute", 0, 1), ("wait", 1, 1)}


def test_a_transfer_starts_when_both_ends_are_posted() -> None:
    late = Compute(("I[0,0]", "W[0,0]"), "O[0,0]", "forward", {"M": 0, "N": 0, "K": 0})
    memory = {"I[0,0]": np.ones((2, 2)), "W[0,0]": np.ones((2, 2))}
    events = run((late, Send(1, "O[0,0]")), (Recv(0, "O[0,0]"),), given=[memory, {}]).events
    assert [(event.rank, event.op, event.start, event.end) for event in events] == [
        (0, "compute", 0, 1),
        (1, "recv", 0, 2),
        (0, "send", 1, 2),
    ]


def test_events_have_phase_sub_operator_peer_and_elements() -> None:
    late = Compute(("I[0,0]", "W[0,0]"), "O[0,0]", "forward", {"M": 0, "N": 0, "K": 0})
    memory = {"I[0,0]": np.ones((2, 3)), "W[0,0]": np.ones((3, 2))}
    compute, recv, send = run(
        (late, Send(1, "O[0,0]")), (Recv(0, "O[0,0]"),), given=[memory, {}]
    ).events
    assert (compute.phase, compute.sub_operator) == ("forward", {"M": 0, "N": 0, "K": 0})
    assert (send.block, send.peer, send.elements, send.track) == ("O[0,0]", 1, 4, "communication")
    assert (recv.block, recv.peer, recv.elements, recv.track) == ("O[0,0]", 0, 0, "communication")


# Counts


@pytest.mark.parametrize(
    ("node", "sent"),
    [
        (AllReduce(ALL, block="x"), [4, 4, 4]),
        (Reduce(ALL, block="x", root=1), [3, 0, 3]),
        (Broadcast(ALL, block="x", root=1), [0, 3, 3]),
        (AllGather(ALL, block="x", blocks=("a", "b", "c")), [6, 6, 6]),
        (ReduceScatter(ALL, blocks=("x", "y", "z"), block="a"), [6, 6, 6]),
        (AllToAll(ALL, blocks=("x", "y", "z"), into=("a", "b", "c")), [6, 6, 6]),
        (Barrier(ALL), [0, 0, 0]),
    ],
)
def test_collectives_count_what_leaves_each_member(node: Instruction, sent: list[int]) -> None:
    memory = {name: np.ones(3) for name in "xyz"}
    assert run(*((node,),) * 3, given=[memory] * 3).sent == sent


def test_a_message_counts_its_block_at_the_sender() -> None:
    assert run((Send(1, "x"),), (Recv(0, "y"),)).sent == [2, 0]


def test_the_peak_counts_the_buffer_of_a_posted_receive() -> None:
    ranks = [
        (Group((Send(peer, "x"), Recv(peer, "y"))), Free("x"), Compute(("y",), "z"), Free("y"))
        for peer in (1, 0)
    ]
    assert run(*ranks).peak == [4, 4]
    assert run((Send(1, "x"),), (Recv(0, "x"),)).peak == [2, 2]
    assert run((Evict("x"), Alloc("y")), given=[{"x": np.ones(8)}]).peak == [8]
