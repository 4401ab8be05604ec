"""Timelines and Chrome traces: every event once, tracks that nest, flows from send to receive."""

from __future__ import annotations

import json
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from primepar.partition import parse_sequence
from primepar.pictures.timeline import chrome_trace, event_text, lanes, messages, timeline_svg
from primepar.reference import emulate
from primepar.reference.emulator.scatter_gather import scatter
from primepar.schedule import Linear, lower
from primepar.schedule.events import Event
from primepar.schedule.operators import PRODUCTS

SVG = "{http://www.w3.org/2000/svg}"


def compute(rank: int, start: float, end: float, phase: str = "forward") -> Event:
    return Event(rank, "compute", "compute", "O[0,0]", start, end, phase, sub_operator={"M": 1})


def message(op: str, rank: int, peer: int, start: float, end: float, block: str = "W") -> Event:
    sent = 4 if op.endswith("send") else 0
    return Event(rank, "communication", op, block, start, end, peer=peer, elements=sent)


@pytest.fixture(scope="module")
def emulated() -> list[Event]:
    """Events of a training step of P2x2 on ones."""
    import numpy as np

    sequence, operator = parse_sequence("P2x2"), Linear(2, 2, 2)
    program = lower(sequence, operator)
    tensors = {name: np.ones((2, 2)) for product in PRODUCTS.values() for name in product.reads}
    memories = scatter(program.initial or (), sequence.grid, tensors)
    return emulate(program, memories, sequence).events


# Lanes


def test_events_that_follow_one_another_share_a_lane() -> None:
    assert lanes([compute(0, 1, 2), compute(0, 0, 1)]) == [[compute(0, 0, 1), compute(0, 1, 2)]]


def test_events_that_overlap_have_lanes_of_their_own() -> None:
    events = [compute(0, 0, 2), compute(0, 1, 3), compute(0, 2, 4)]
    assert lanes(events) == [[events[0], events[2]], [events[1]]]


def test_no_lane_holds_two_events_at_once(emulated: list[Event]) -> None:
    own = [event for event in emulated if event.rank == 0]
    dealt = lanes(own)
    assert sum(map(len, dealt)) == len(own)
    assert all(a.end <= b.start for lane in dealt for a, b in pairwise(lane))


# Messages


def test_sends_and_receives_are_paired_in_order() -> None:
    first, second = message("isend", 0, 1, 0, 3), message("isend", 0, 1, 1, 2)
    early, late = message("irecv", 1, 0, 0, 3), message("irecv", 1, 0, 2, 3)
    assert messages([second, late, first, early]) == [(first, early), (second, late)]


def test_of_messages_that_start_together_those_of_one_block_are_paired() -> None:
    sends = [message("isend", 0, 1, 0, 1, block) for block in "AB"]
    receives = [message("irecv", 1, 0, 0, 1, block) for block in "BA"]
    assert messages([*sends, *receives]) == [(sends[1], receives[0]), (sends[0], receives[1])]


def test_a_message_without_a_partner_has_no_pair() -> None:
    assert messages([message("send", 0, 1, 0, 1), message("recv", 0, 1, 0, 1)]) == []


# Chrome trace


def test_a_chrome_trace_has_every_event_once_on_tracks_that_do_not_overlap(
    emulated: list[Event],
) -> None:
    entries = json.loads(json.dumps(chrome_trace(emulated)))["traceEvents"]
    spans = [entry for entry in entries if entry["ph"] == "X"]
    assert sorted((span["pid"], span["ts"], span["name"]) for span in spans) == sorted(
        (event.rank, event.start * 1e6, event_text(event)) for event in emulated
    )
    tracks: dict[tuple[int, int], list[dict[str, float]]] = {}
    for span in spans:
        tracks.setdefault((span["pid"], span["tid"]), []).append(span)
    for track in tracks.values():
        track.sort(key=lambda span: (span["ts"], span["dur"]))
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(track))


def test_every_track_of_a_chrome_trace_is_named(emulated: list[Event]) -> None:
    entries = chrome_trace(emulated)["traceEvents"]
    assert isinstance(entries, list)
    used = {(entry["pid"], entry["tid"]) for entry in entries if entry["ph"] == "X"}
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in entries if e["name"] == "thread_name"}
    assert used <= names.keys()
    for rank in range(4):
        own = [name for (pid, _), name in sorted(names.items()) if pid == rank]
        assert own[0] == "compute"
        assert "communication" in own


def test_every_message_is_a_flow_from_its_send_to_its_receive(emulated: list[Event]) -> None:
    entries = chrome_trace(emulated)["traceEvents"]
    assert isinstance(entries, list)
    starts = {entry["id"]: entry for entry in entries if entry["ph"] == "s"}
    ends = {entry["id"]: entry for entry in entries if entry["ph"] == "f"}
    assert len(starts) == sum(event.op == "isend" for event in emulated) == 4 * 8
    assert starts.keys() == ends.keys()
    spans = {(e["pid"], e["tid"], e["ts"]): e["name"] for e in entries if e["ph"] == "X"}
    for number, start in starts.items():
        end = ends[number]
        sent = spans[start["pid"], start["tid"], start["ts"]]
        received = spans[end["pid"], end["tid"], end["ts"]]
        block = sent.removeprefix("isend ").split(" -> ")[0]
        assert sent == f"isend {block} -> {end['pid']}"
        assert received == f"irecv {block} <- {start['pid']}"


# Timeline


def bars(picture: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(picture).iter(f"{SVG}rect"))


def test_a_timeline_draws_every_event_once(emulated: list[Event]) -> None:
    titles = [bar.findtext(f"{SVG}title") or "" for bar in bars(timeline_svg(emulated))]
    assert sorted(title.rpartition(", ")[0] for title in titles) == sorted(
        f"rank {event.rank}: {event_text(event)}" for event in emulated
    )


def test_a_timeline_keeps_proportions() -> None:
    events = [compute(0, 10.0, 11.0), compute(1, 11.0, 14.0, "backward")]
    one, three = bars(timeline_svg(events, width=1000))
    assert float(three.attrib["width"]) == pytest.approx(3 * float(one.attrib["width"]), abs=0.02)
    assert float(three.attrib["x"]) == pytest.approx(
        float(one.attrib["x"]) + float(one.attrib["width"]), abs=0.02
    )
    assert one.attrib["fill"] != three.attrib["fill"]


def test_a_timeline_of_many_events_shows_the_first_and_states_the_counts() -> None:
    events = [compute(0, float(step), step + 0.5) for step in range(100)]
    picture = timeline_svg(events, limit=30)
    assert len(bars(picture)) == 30
    assert "the first 30 of 100 events" in picture


@pytest.mark.parametrize("events", [[], [compute(0, 5.0, 5.0)]])
def test_a_timeline_of_nothing_or_of_no_time_is_a_picture(events: list[Event]) -> None:
    assert len(bars(timeline_svg(events))) == len(events)


def test_a_name_with_markup_is_written_as_text() -> None:
    event = message("send", 0, 1, 0, 1, block='<b a="&">')
    (bar,) = bars(timeline_svg([event]))
    assert bar.findtext(f"{SVG}title") == 'rank 0: send <b a="&"> -> 1, 0 + 1'
