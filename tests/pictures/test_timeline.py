"""Timelines as SVG and as text: every event once, in lanes that do not overlap, in proportion."""

from __future__ import annotations

import re
from collections.abc import Callable
from html import unescape
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest

from primepar.api.drawings import emulated_events
from primepar.partition import parse_sequence
from primepar.pictures.timeline import (
    chrome_trace,
    event_text,
    kind_of,
    lanes,
    messages,
    timeline_svg,
    timeline_text,
)
from primepar.schedule import lower
from primepar.schedule.events import Event

SVG = "{http://www.w3.org/2000/svg}"


def event(
    rank: int, op: str, start: float, end: float, phase: str = "", block: str = "x",
    peer: int | None = None,
) -> Event:  # fmt: skip
    track = "compute" if op in ("compute", "cut") else "communication"
    return Event(rank, track, op, block, start, end, phase, peer)  # type: ignore[arg-type]


EVENTS = [
    event(0, "compute", 0, 4, "blocks.0.qkv.forward"),
    event(0, "compute", 4, 5.6, "gradient"),
    event(0, "compute", 5.6, 6, "norm.backward"),
    event(0, "cut", 6, 7),
    event(0, "compute", 9.6, 10, "forward"),
    event(1, "isend", 0, 2),
    event(1, "wait", 0, 10),
    event(1, "irecv", 1, 3),
    event(1, "all_reduce", 5, 10),
]


@pytest.fixture(scope="module")
def emulated() -> list[Event]:
    """Events of a training step of P2x2."""
    sequence = parse_sequence("P2x2")
    return emulated_events(lower(sequence), sequence)


def bars(picture: str) -> dict[str, dict[str, float]]:
    """Tooltip -> where its bar is."""
    return {
        tooltip: {key: float(box.attrib[key]) for key in ("x", "y", "width")}
        for box in ElementTree.fromstring(picture).iter(f"{SVG}rect")
        if (tooltip := box.findtext(f"{SVG}title"))
    }


def test_events_that_overlap_have_lanes_of_their_own(emulated: list[Event]) -> None:
    first, second, third = (event(0, "compute", start, start + 2) for start in (0, 1, 2))
    assert lanes([third, second, first]) == [[first, third], [second]]
    dealt = lanes(one for one in emulated if one.rank == 0)
    assert sum(map(len, dealt)) == sum(one.rank == 0 for one in emulated)
    assert all(before.end <= after.start for lane in dealt for before, after in pairwise(lane))


def test_a_timeline_draws_every_event_once(emulated: list[Event]) -> None:
    """Waits and frees that take no time are left out."""
    assert sorted(bars(timeline_svg(emulated))) == sorted(
        f"rank {one.rank}: {event_text(one)}, {one.start:g} to {one.end:g}"
        for one in emulated
        if one.end > one.start or kind_of(one) != "other"
    )


def test_a_bar_names_its_block_and_the_other_end_where_there_is_room() -> None:
    long = "hidden states of layer 3"
    events = [
        event(0, "isend", 0, 1, block="I[0]", peer=1),
        event(1, "irecv", 0, 1, "", "I[0]", 0),
        event(0, "compute", 1, 1.1, "forward", long),
        event(1, "isend", 1, 9, "", long, 0),
    ]
    names = map(unescape, re.findall(r">([^<>]+)</text>", timeline_svg(events)))
    assert [name for name in names if "I[0]" in name or long in name] == [
        "I[0] > 1", "I[0] < 0", f"{long} > 0"
    ]  # fmt: skip


def test_layers_are_named_above_their_products_and_a_product_names_its_signal() -> None:
    lane = [("blocks.0.qkv", 2), ("blocks.0.proj", 1), ("blocks.1.qkv", 2), ("head.weight", 1)]
    events = [event(0, "irecv", 0, 1, block="I[1]", peer=1), event(0, "wait", 1, 1, block="I[1]")]
    for number, (name, last) in enumerate(lane):
        phase = f"{name}.{'update' if name == 'head.weight' else 'forward'}"
        events.append(
            event(0, "compute", 2 * number + 1, 2 * number + 1 + last, phase, f"{name}/O")
        )
    names = list(map(unescape, re.findall(r">([^<>]+)</text>", timeline_svg(events))))
    assert [name for name in names if name in ("blocks.0", "blocks.1", "updates")] == [
        "blocks.0", "blocks.1", "updates"
    ]  # fmt: skip
    assert "blocks.0.qkv/O after I[1]" in names


def test_a_timeline_keeps_proportions() -> None:
    events = [event(0, "compute", 10, 11, "forward"), event(1, "compute", 11, 14, "forward")]
    one, three = bars(timeline_svg(events)).values()
    assert three["width"] == pytest.approx(3 * one["width"], abs=0.02)
    assert three["x"] == pytest.approx(one["x"] + one["width"], abs=0.02)


def test_a_timeline_of_many_events_shows_the_first_and_states_the_counts() -> None:
    picture = timeline_svg([event(0, "cut", step, step + 0.5) for step in range(100)], limit=30)
    assert len(bars(picture)) == 30
    assert "the first 30 of 100 events" in picture


@pytest.mark.parametrize("events", [[], [event(0, "send", 0, 0)]])
def test_a_timeline_of_nothing_or_of_no_time_is_a_picture(events: list[Event]) -> None:
    assert len(bars(timeline_svg(events))) == len(events)
    assert timeline_text(events, 28, "us").startswith("                  0     0 us\n")


def test_a_name_with_markup_is_written_as_text() -> None:
    picture = timeline_svg([event(0, "send", 0, 1, block='<b a="&">', peer=1)])
    assert list(bars(picture)) == ['rank 0: send <b a="&"> -> 1, 0 to 1']


def test_phases_of_operators_are_drawn_as_the_phase_that_they_are() -> None:
    kinds = ["forward", "gradient", "backward", "other", "forward", "send", "other", "receive",
             "collective"]  # fmt: skip
    assert list(map(kind_of, EVENTS)) == kinds
    picture = timeline_svg(EVENTS)
    assert all(f">{kind}<" in picture for kind in kinds)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_letter_is_what_took_most_of_its_time(ranks: int) -> None:
    lines = [
        "                  0    10 ms",
        "rank 0  products  FFFFGGo...",
        "        links     ..........",
        "rank 1  products  ..........",
        "        links     ---..=====",
        "F forward  B backward  G gradient  o other  - message  = collective  . nothing",
    ]
    if ranks == 1:
        lines[3:5] = ["and 1 more rank"]
    assert timeline_text(EVENTS, 28, "ms", ranks).splitlines() == lines


# Chrome traces


def test_sends_and_receives_are_paired_in_order_and_by_block() -> None:
    def ends(start: float, block: str) -> tuple[Event, Event]:
        sent = event(0, "isend", start, start + 3, block=block, peer=1)
        return sent, event(1, "irecv", start, start + 3, block=block, peer=0)

    pairs = [ends(0, "A"), ends(1, "B"), ends(1, "C")]
    (a, A), (b, B), (c, C) = pairs
    assert messages([c, C, B, A, a, b]) == [(a, A), (c, C), (b, B)]
    assert messages([a, event(0, "recv", 0, 1, peer=1)]) == []


def test_a_chrome_trace_has_every_event_once_on_named_tracks_that_do_not_overlap(
    emulated: list[Event],
) -> None:
    entries = entries_of(emulated, lambda entry: entry["ph"] == "X")
    assert sorted((entry["pid"], entry["ts"], entry["name"]) for entry in entries) == sorted(
        (one.rank, one.start * 1e6, event_text(one)) for one in emulated
    )
    tracks: dict[tuple[int, int], list[dict[str, float]]] = {}
    for entry in entries:
        tracks.setdefault((entry["pid"], entry["tid"]), []).append(entry)
    for track in tracks.values():
        track.sort(key=lambda entry: (entry["ts"], entry["dur"]))
        assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(track))
    names = entries_of(emulated, lambda entry: entry["name"] == "thread_name")
    named = {(entry["pid"], entry["tid"]): entry["args"]["name"] for entry in names}
    assert tracks.keys() <= named.keys()
    assert all(named[rank, 0] == "compute" for rank in range(4))


def test_every_message_is_a_flow_from_its_send_to_its_receive(emulated: list[Event]) -> None:
    spans = {(entry["pid"], entry["tid"], entry["ts"]): entry["name"]
             for entry in entries_of(emulated, lambda entry: entry["ph"] == "X")}  # fmt: skip
    starts = {
        entry["id"]: entry for entry in entries_of(emulated, lambda entry: entry["ph"] == "s")
    }
    ends = {entry["id"]: entry for entry in entries_of(emulated, lambda entry: entry["ph"] == "f")}
    assert starts.keys() == ends.keys()
    assert len(starts) == sum(one.op == "isend" for one in emulated) == 4 * 8
    for number, start in starts.items():
        end = ends[number]
        sent = spans[start["pid"], start["tid"], start["ts"]]
        block = sent.removeprefix("isend ").split(" -> ")[0]
        assert sent == f"isend {block} -> {end['pid']}"
        received = spans[end["pid"], end["tid"], end["ts"]]
        assert received == f"irecv {block} <- {start['pid']}"


def entries_of(events: list[Event], keep: Callable[..., bool]) -> list[dict[str, Any]]:
    entries: Any = chrome_trace(events)["traceEvents"]
    return [entry for entry in entries if keep(entry)]
