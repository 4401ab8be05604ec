"""Messages in slots, and on communicators that run in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count, product
from typing import Any

import pytest
from attack_transport import TRANSPORTS, traffic_program
from oracle.traffic_run import comes_to_an_end

from primepar.preflight.verdict import fewest_slots
from primepar.schedule import Program
from primepar.schedule.matching import Matches
from primepar.schedule.program import Group, IRecv, ISend, Recv, Send, Wait
from primepar.schedule.transport import Order, Transport
from primepar.schedule.waits import WaitGraph, cycle_of
from primepar.verify.program import verify_program

POSTED = (
    [ISend(1, "a", request="s"), IRecv(1, "b", request="r"), Wait("s"), Wait("r")],
    [ISend(0, "b", request="s"), IRecv(0, "a", request="r"), Wait("s"), Wait("r")],
)
"""Both ranks post their send first."""


def program_of(*lists: Sequence[object]) -> Program:
    """A program of these lists."""
    programs: Any = tuple(map(tuple, lists))
    return Program("primepar-program", 1, len(lists), programs)


def hangs(program: Program, slots: int | None, order: Order = "free") -> str | None:
    """The counterexample; the explorer must agree that there is one, or none."""
    transport = Transport(slots, order)
    report = verify_program(program, only="deadlock-freedom", transport=transport)
    assert comes_to_an_end(program, transport) == (report.verdict == "proved")
    return report.properties[0].counterexample


@pytest.mark.parametrize("seed", range(10))
def test_proof_and_run_agree_in_every_transport(seed: int) -> None:
    program = traffic_program(seed)
    for transport in TRANSPORTS:
        report = verify_program(program, only="deadlock-freedom", transport=transport)
        ends = {comes_to_an_end(program, transport, chance) for chance in (None, 1, 2)}
        assert ends == {report.verdict == "proved"}, transport


def never_full(graph: WaitGraph, send: int, receive: int, received: list[int]) -> None:
    """A graph whose slots are never full, in place of its own method."""
    sent = graph._add(graph.places[send], send)
    received.append(graph._add(graph.places[receive], receive, sent))
    graph.before[send + 1].append(sent)
    graph.before[receive + 1].append(received[-1])


def without_data(graph: WaitGraph, send: int, receive: int, received: list[int]) -> None:
    """A graph whose receives end without their data, in place of its own method."""
    never_full(graph, send, receive, received)
    graph.before[received[-1]] = [receive]


@pytest.mark.parametrize("wrong", [never_full, without_data])
def test_the_run_contradicts_a_wrong_graph(
    wrong: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WaitGraph, "_use_slot", wrong)
    programs = [traffic_program(seed) for seed in range(40)]
    assert any(
        (cycle_of(WaitGraph(Matches(program), Transport(1))) is None)
        != comes_to_an_end(program, Transport(1))
        for program in programs
    )


def test_three_sends_ahead_of_their_receives_need_three_slots() -> None:
    """A finite capacity: the fourth send would wait for a slot that nobody frees."""
    sends = [Send(1, f"a{number}") for number in range(3)]
    receives = [Recv(0, f"b{number}") for number in range(3)]
    program = program_of([*sends, Send(1, "go", communicator="other")],
                         [Recv(0, "go", communicator="other"), *receives])  # fmt: skip
    assert [bool(hangs(program, slots)) for slots in (0, 1, 2, 3, None)] == [
        True, True, True, False, False,
    ]  # fmt: skip
    assert fewest_slots(program) == 3
    assert hangs(program, 2) == (
        "rank 0, instruction 2 (send a2 -> 1) and rank 1, instruction 0 (recv go <- 0) wait for "
        "each other: post them in one order on both ranks, start them in one group, or give them "
        "more slots or communicators of their own"
    )


def test_a_wait_for_each_other_needs_more_than_slots() -> None:
    program = program_of([Recv(1, "b"), Send(1, "a")], [Recv(0, "a"), Send(0, "b")])
    assert fewest_slots(program) is None


@pytest.mark.parametrize("order", ["communicator", "peer"])
def test_posted_sends_before_receives_hang_in_order(order: Order) -> None:
    program = program_of(*POSTED)
    assert hangs(program, 0) is None
    assert hangs(program, 0, order) == (
        "rank 0, instruction 0 (isend a -> 1) and rank 1, instruction 0 (isend b -> 0) wait for "
        "each other: post them in one order on both ranks, start them in one group, or give them "
        "more slots or communicators of their own"
    )
    assert hangs(program, 1, order) is None
    assert fewest_slots(program, order) == 1


def test_a_group_is_one_operation() -> None:
    program = program_of(
        [Group((Send(1, "a"), Recv(1, "b")))], [Group((Send(0, "b"), Recv(0, "a")))]
    )
    for slots, order in product((0, 1, None), ("communicator", "peer")):
        assert hangs(program, slots, order) is None  # type: ignore[arg-type]


def test_a_batched_send_does_not_meet_a_receive_of_its_own() -> None:
    """With torch and NCCL the two are on different communicators."""
    program = program_of([Group((Send(1, "a"),))], [Recv(0, "b")])
    assert hangs(program, 0, "communicator") is None
    assert hangs(program, 0, "peer") is not None


@pytest.mark.parametrize("seed", range(24))
def test_the_fewest_slots_are_those_of_trying_all(seed: int) -> None:
    program = traffic_program(seed)
    if not comes_to_an_end(program, Transport(None)):
        assert fewest_slots(program) is None
        return
    ends = (comes_to_an_end(program, Transport(slots)) for slots in count())
    assert fewest_slots(program) == next(slots for slots, end in enumerate(ends) if end)
