"""Two pictures of the events of a run: an SVG timeline and a Chrome trace.

The executors emit `Event`s; what is drawn here is a function of a list of them. Both pictures
give every rank a compute track and a communication track; messages in flight together, which
would cover one another, have lanes of their own in that track.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from primepar.pictures import svg
from primepar.schedule.events import TRACKS, Event, Track


def event_text(event: Event) -> str:
    """Describe what happened in a few words, `isend W[0,1] -> 2`."""
    arrow = "<-" if event.op.endswith("recv") else "->"
    peer = "" if event.peer is None else f" {arrow} {event.peer}"
    return f"{event.phase if event.op == 'compute' else event.op} {event.block}{peer}".strip()


def lanes(events: Iterable[Event]) -> list[list[Event]]:
    """Deal events into the fewest lanes in which none overlaps another, in order of start."""
    dealt: list[list[Event]] = []
    for event in sorted(events, key=lambda event: (event.start, event.end)):
        free = (lane for lane in dealt if lane[-1].end <= event.start)
        lane = next(free, None)
        if lane is None:
            dealt.append([event])
        else:
            lane.append(event)
    return dealt


def _by_track(events: Sequence[Event]) -> dict[tuple[int, Track], list[list[Event]]]:
    """(rank, track) -> its lanes, for every rank from 0 to the last one that did anything."""
    by_track: dict[tuple[int, Track], list[Event]] = {
        (rank, track): []
        for rank in range(1 + max((event.rank for event in events), default=-1))
        for track in TRACKS
    }
    for event in events:
        by_track[event.rank, event.track].append(event)
    return {place: lanes(track_events) for place, track_events in by_track.items()}


# Chrome trace


def chrome_trace(events: Sequence[Event]) -> dict[str, object]:
    """Return the Chrome trace of a run, to be saved as JSON and opened at ui.perfetto.dev.

    One process per rank, one thread per lane, one flow from each send to its receive. Times are
    in microseconds.
    """
    entries: list[dict[str, object]] = []
    spans: dict[int, dict[str, object]] = {}
    threads: dict[int, int] = {}
    for (rank, track), track_lanes in _by_track(events).items():
        if track == "compute":
            entries.append(_named("process", rank, 0, f"rank {rank}"))
        for number, lane in enumerate(track_lanes):
            thread = threads.get(rank, 0)
            threads[rank] = thread + 1
            label = track if number == 0 else f"{track} ({number + 1})"
            entries.append(_named("thread", rank, thread, label))
            for event in lane:
                spans[id(event)] = span = _span(event, thread)
                entries.append(span)
    for number, (send, receive) in enumerate(messages(events)):
        entries += _flow(number, spans[id(send)], spans[id(receive)])
    return {"traceEvents": entries, "displayTimeUnit": "ms"}


def messages(events: Iterable[Event]) -> list[tuple[Event, Event]]:
    """Pair every send with its receive, in order per (source, destination).

    Of several that start together the one with the block of the same name is taken.
    """
    sent: dict[tuple[int, int | None], list[Event]] = {}
    ordered = sorted(events, key=lambda event: event.start)
    for event in ordered:
        if event.op.endswith("send"):
            sent.setdefault((event.rank, event.peer), []).append(event)
    pairs = []
    for event in ordered:
        waiting = sent.get((event.peer, event.rank)) if event.peer is not None else None
        if event.op.endswith("recv") and waiting:
            first = [send for send in waiting if send.start == waiting[0].start]
            pair = next((send for send in first if send.block == event.block), first[0])
            waiting.remove(pair)
            pairs.append((pair, event))
    return pairs


def _named(what: str, rank: int, thread: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": f"{what}_name", "pid": rank, "tid": thread, "args": {"name": name}}


def _span(event: Event, thread: int) -> dict[str, object]:
    details = {"elements": event.elements, **event.sub_operator}
    return {
        "ph": "X",
        "name": event_text(event),
        "cat": event.phase or event.op,
        "pid": event.rank,
        "tid": thread,
        "ts": event.start * 1e6,
        "dur": (event.end - event.start) * 1e6,
        "args": details,
    }


def _flow(
    number: int, source: dict[str, object], target: dict[str, object]
) -> list[dict[str, object]]:
    common = {"name": "message", "cat": "message", "id": number}
    return [
        {**common, "ph": "s", **{key: source[key] for key in ("pid", "tid", "ts")}},
        {**common, "ph": "f", "bp": "e", **{key: target[key] for key in ("pid", "tid", "ts")}},
    ]


# SVG timeline

_COLOURS = {
    "forward": "#4a7fc1",
    "backward": "#d9822b",
    "gradient": "#3f9b6e",
    "send": "#8f6bb8",
    "receive": "#b79ad3",
    "collective": "#c4546a",
    "other": "#8b949e",
}
_LEFT, _TOP, _BAR, _LANE, _GAP = 64, 52, 18, 8, 14


def timeline_svg(
    events: Sequence[Event], width: int = 1000, limit: int = 4000, unit: str = "s"
) -> str:
    """Return the timeline of a run: two tracks per rank, time from left to right.

    Of more than `limit` events the first `limit` are drawn, and the caption names both counts.
    `unit` is what one unit of an event's time is called.
    """
    drawn = sorted(events, key=lambda event: (event.start, event.end))[:limit]
    begin = min((event.start for event in drawn), default=0.0)
    end = max((event.end for event in drawn), default=0.0)
    scale = (width - _LEFT - 16) / ((end - begin) or 1.0)
    y = float(_TOP)
    body: list[str] = []
    for (rank, track), track_lanes in _by_track(drawn).items():
        if track == "compute":
            body.append(svg.text(f"rank {rank}", 8, y + 13))
        height = _BAR if track == "compute" else _LANE
        for lane in track_lanes:
            body += [_bar(event, _LEFT + (event.start - begin) * scale, y, scale, height)
                     for event in lane]  # fmt: skip
            y += height + 2
        y += _GAP if track == "communication" else 0
    caption = f"{len(drawn)} events"
    if len(drawn) < len(events):
        caption = f"the first {len(drawn)} of {len(events)} events"
    axis = _axis(begin, end, scale, y, unit)
    legend = _legend(drawn)
    label = svg.text(caption, width - 16, 20, text_anchor="end")
    return svg.picture(width, y + 8, [*legend, label, *axis, *body], f"Timeline of {caption}")


def kind_of(event: Event) -> str:
    """What is drawn alike: a phase, also that of an operator of a plan, or a way to move."""
    if event.track == "compute":
        phase = event.phase.rpartition(".")[2]
        return phase if phase in _COLOURS else "other"
    if event.op.endswith("send"):
        return "send"
    if event.op.endswith("recv"):
        return "receive"
    return "other" if event.op in ("wait", "fetch", "evict") else "collective"


def _bar(event: Event, x: float, y: float, scale: float, height: int) -> str:
    """One event; a hairline where it would be too narrow to see."""
    duration = event.end - event.start
    return svg.element(
        "rect",
        svg.title(f"rank {event.rank}: {event_text(event)}, {event.start:.6g} + {duration:.3g}"),
        x=x,
        y=y,
        width=max(duration * scale, 1.0),
        height=height,
        rx=min(2.0, duration * scale / 4),
        fill=_COLOURS[kind_of(event)],
    )


def _legend(events: Sequence[Event]) -> list[str]:
    kinds = {kind_of(event) for event in events}
    body, x = [], float(_LEFT)
    for kind, colour in _COLOURS.items():
        if kind in kinds:
            body.append(svg.element("circle", cx=x + 5, cy=16, r=5, fill=colour))
            body.append(svg.text(kind, x + 15, 20))
            x += 30 + 7 * len(kind)
    return body


def _axis(begin: float, end: float, scale: float, bottom: float, unit: str) -> list[str]:
    """Rules at round times, their labels above them."""
    body = []
    step = _round_step((end - begin) / 8)
    for number in range(int((end - begin) / step) + 1 if step else 0):
        x = _LEFT + number * step * scale
        body.append(svg.element("line", x1=x, y1=_TOP - 8, x2=x, y2=bottom, stroke=svg.GREY,
                                stroke_opacity=0.25))  # fmt: skip
        body.append(svg.text(f"{number * step:.6g} {unit}", x, _TOP - 12, text_anchor="middle",
                             font_size=10))  # fmt: skip
    return body


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is not below `least`."""
    if least <= 0:
        return 0.0
    power = float(f"1e{f'{least:e}'.partition('e')[2]}")
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999999)
