"""The timeline as text: a letter for what took most of a cell, ranks beyond the limit counted."""

from __future__ import annotations

from primepar.pictures.timeline import kind_of, timeline_svg
from primepar.pictures.timeline_text import timeline_text
from primepar.schedule.events import Event


def event(rank: int, op: str, start: float, end: float, phase: str = "") -> Event:
    track = "compute" if op in ("compute", "cut") else "communication"
    return Event(rank, track, op, "x", start, end, phase)  # type: ignore[arg-type]


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
LEGEND = "F forward  B backward  G gradient  o other  - message  = collective  . nothing\n"


def test_each_cell_is_what_took_most_of_it() -> None:
    assert timeline_text(EVENTS, 28, "ms") == (
        "                  0    10 ms\n"
        "rank 0  products  FFFFGGo...\n"
        "        links     ..........\n"
        "rank 1  products  ..........\n"
        "        links     ---..=====\n" + LEGEND
    )


def test_ranks_beyond_the_limit_are_counted() -> None:
    assert timeline_text(EVENTS, 28, "ms", ranks=1) == (
        "                  0    10 ms\n"
        "rank 0  products  FFFFGGo...\n"
        "        links     ..........\n"
        "and 1 more rank\n" + LEGEND
    )


def test_a_run_in_which_nothing_takes_time_is_drawn() -> None:
    assert timeline_text([], 28, "us").splitlines()[0] == "                  0     0 us"
    assert "rank 0" in timeline_text([event(0, "cut", 0, 0)], 28, "us")


def test_phases_of_operators_are_drawn_as_the_phase_that_they_are() -> None:
    assert [kind_of(each) for each in EVENTS] == [
        "forward", "gradient", "backward", "other", "forward", "send", "other", "receive",
        "collective",
    ]  # fmt: skip
    picture = timeline_svg(EVENTS)
    assert all(f">{name}<" in picture for name in ("forward", "backward", "gradient", "send"))
