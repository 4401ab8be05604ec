"""The hidden share of communication, from the events of every executor."""

from __future__ import annotations

from random import Random

import pytest

from primepar.partition.flux import FluxGather
from primepar.plan.cluster import load_cluster
from primepar.plan.simulator.run import simulate
from primepar.reference import emulate
from primepar.reference.check import memories
from primepar.schedule.events import Communication, Event, Track, communication, together, union


def event(track: Track, start: float, end: float, op: str = "isend", rank: int = 0) -> Event:
    return Event(rank, track, op, "x", start, end)


def test_only_what_travels_under_a_product_is_hidden() -> None:
    events = [
        event("compute", 0, 4, "compute"),
        event("communication", 2, 6),
        event("communication", 3, 8),
        event("compute", 7, 9, "compute"),
    ]
    assert communication(events) == [Communication(total=6, hidden=3)]
    assert communication(events)[0].share == 0.5


def test_waits_are_no_communication_and_ranks_are_apart() -> None:
    events = [
        event("communication", 0, 10, "wait"),
        event("communication", 1, 3, "all_reduce", rank=2),
        event("compute", 0, 10, "compute"),
    ]
    idle = Communication(0, 0)
    assert communication(events) == [idle, idle, Communication(2, 0)]
    assert [rank.share for rank in communication(events)] == [1.0, 1.0, 0.0]
    assert communication([]) == []
    assert together(communication(events)) == Communication(2, 0)
    assert together([Communication(2, 1), Communication(6, 5)]).share == 0.75


def test_random_intervals_are_counted_as_unit_by_unit() -> None:
    random = Random(5)
    for _ in range(200):
        events, computing, travelling = [], set[int](), set[int]()
        for _ in range(random.randint(0, 12)):
            start = random.randint(0, 30)
            end = start + random.randint(0, 6)
            track: Track = random.choice(("compute", "communication"))
            events.append(event(track, start, end))
            (computing if track == "compute" else travelling).update(range(start, end))
        expected = Communication(len(travelling), len(travelling & computing))
        assert communication([*events, event("compute", 0, 0)]) == [expected]


def test_intervals_that_touch_are_one() -> None:
    assert union([(3, 4), (0, 1), (1, 2), (0, 0.5)]) == [(0, 2), (3, 4)]


@pytest.mark.parametrize("chunks", [1, 4])
def test_flux_hides_most_of_an_all_gather(chunks: int) -> None:
    """Only the wait for the first chunks is left where a product takes longer than its chunk."""
    method = FluxGather(devices=4, chunks=chunks, M=4096, N=4096, K=16384)
    run = simulate(method.program(), load_cluster("h200-8"), "bfloat16")
    assert all(rank.share > 0.99 for rank in communication(run.events))


def test_the_emulator_has_the_same_events() -> None:
    program = FluxGather(devices=4).program()
    run = emulate(program, memories(program))
    assert len(communication(run.events)) == 4
