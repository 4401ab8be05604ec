"""One timeline for everything that takes time: rows of bars, read from the events of a run.

The executors, the emulator and the simulator emit `Event`s. `timeline_svg` and `timeline_text` draw
every event, with a compute track and a communication track for each rank; messages in flight
together, which would cover one another, have lanes of their own. Pictures that show less (the
actions of a pipeline, the tiles of Stream-K, the chunks of a memory) choose other bars, and
`draw` draws them. `chrome_trace` makes a file for ui.perfetto.dev of the same lanes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from primepar.pictures import svg
from primepar.schedule.events import TRACKS, Event, Track

COLOURS = {
    "forward": "#4a7fc1",
    "backward": "#d9822b",
    "gradient": "#3f9b6e",
    "send": "#8f6bb8",
    "receive": "#b79ad3",
    "collective": "#c4546a",
    "other": "#8b949e",
}
"""Kind of an event -> its colour."""
LETTERS = {**{kind: kind[0].upper() for kind in ("forward", "backward", "gradient")},
           "send": "-", "receive": "-", "collective": "=", "other": "o"}  # fmt: skip
"""Kind of an event -> its letter where there are no colours."""
_LABELS: dict[Track, str] = {"compute": "products", "communication": "links"}
_WIDTH, _RIGHT, _CHARACTER = 1000, 16, 6.6


class Row(NamedTuple):
    """A row of a timeline; `high` and `gap`, the room below it, are in pixels."""

    label: str
    high: int = 24
    gap: int = 6


class Bar(NamedTuple):
    """What lasts from `start` to `end` in a row; a hairline where that is no time at all."""

    row: int
    start: float
    end: float
    colour: str
    tooltip: str
    """What it is; its times are added."""
    label: str = ""
    """Written on the bar where it fits."""
    filled: bool = True


class Panel(NamedTuple):
    """Some rows with a title; the panels of a picture have one scale."""

    title: str
    rows: Sequence[Row]
    bars: Sequence[Bar]


def draw(
    panels: Sequence[Panel], legend: Mapping[str, str], label: str, unit: str = "",
    widest: float = float("inf"), narrowest: float = 0.0,
) -> str:  # fmt: skip
    """Return the SVG of some panels, one below another, with time from left to right.

    `legend` has the colour of each meaning, and `unit` is what one unit of time is called. It has
    at most `widest` pixels, and at least `narrowest` even if the picture then becomes wide.
    """
    bars = [bar for panel in panels for bar in panel.bars]
    begin = min((bar.start for bar in bars), default=0.0)
    end = max((bar.end for bar in bars), default=0.0)
    longest = max((len(row.label) for panel in panels for row in panel.rows), default=0)
    left = max(64.0, 18 + 6.6 * longest)
    scale = (_WIDTH - left - _RIGHT) / ((end - begin) or 1.0)
    scale = max(narrowest, min(widest, scale))
    body, x = [], left
    for meaning, colour in legend.items():
        body.append(svg.element("rect", x=x, y=10, width=12, height=12, rx=2, fill=colour))
        body.append(svg.text(meaning, x + 17, 20))
        x += 36 + 7 * len(meaning)
    y = 34.0 if legend else 8.0
    for panel in panels:
        body.append(svg.text(panel.title, 8, y + 8, font_weight=600))
        tops, bottom = [], y + 36
        for row in panel.rows:
            tops.append(bottom)
            bottom += row.high + row.gap
        for time, tick in _ticks(end - begin, scale, 70 if unit else 40):
            body.append(svg.element("line", x1=left + tick, y1=y + 30, x2=left + tick, y2=bottom,
                                    stroke=svg.GREY, stroke_opacity=0.22))  # fmt: skip
            body.append(svg.text(f"{time:.6g} {unit}".rstrip(), left + tick, y + 26,
                                 text_anchor="middle", font_size=10))  # fmt: skip
        for row, top in zip(panel.rows, tops, strict=True):
            body.append(svg.text(row.label, 8, top + row.high / 2 + 4))
        for bar in panel.bars:
            x, high = left + (bar.start - begin) * scale, panel.rows[bar.row].high
            body += _bar(bar, x, (bar.end - bar.start) * scale, tops[bar.row], high)
        y = bottom + 12
    return svg.picture(left + (end - begin) * scale + _RIGHT, y, body, label)


def _bar(bar: Bar, x: float, width: float, top: float, high: int) -> Iterator[str]:
    edge: dict[str, object] = {}
    if not bar.filled:
        edge = {"stroke": bar.colour, "stroke_width": 1.5}
    elif width >= 4:
        edge = {"stroke": svg.PAPER, "stroke_width": 1}  # so that neighbours are seen as two
    yield svg.element(
        "rect", svg.title(f"{bar.tooltip}, {bar.start:.6g} to {bar.end:.6g}"), x=x, y=top,
        width=max(width, 1.0), height=high, rx=min(2.0, width / 4),
        fill=bar.colour if bar.filled else "none", **edge,
    )  # fmt: skip
    # Of `blocks.0.proj/O[0,1] > 2` the block, or `proj`, where there is no room for all.
    block = re.split(" (?:<|>|after) ", bar.label)[0]
    names = (bar.label, block, re.split(r"[/\[]", block)[0].rpartition(".")[2])
    name = next((one for one in names if one and len(one) * _CHARACTER <= width), None)
    if name:
        fill = svg.WHITE if bar.filled else svg.GREY
        yield svg.text(name, x + width / 2, top + high / 2 + 4, fill=fill, font_size=11,
                       text_anchor="middle")  # fmt: skip


def _ticks(length: float, scale: float, pixels: int) -> Iterator[tuple[float, float]]:
    """Yield round times, at least this many pixels apart, and their places.

    The distance is the smallest of 1, 2, 5 times a power of ten: 0.002, 0.005, 0.01, ...
    """
    if length <= 0:
        return
    least = pixels / scale
    power = float(f"1e{f'{least:e}'.partition('e')[2]}")
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999999)
    for number in range(int(length / step) + 1):
        yield number * step, number * step * scale


# The events of a run


def event_text(event: Event) -> str:
    """Describe what happened in a few words, `isend W[0,1] -> 2`."""
    arrow = "<-" if event.op.endswith("recv") else "->"
    peer = "" if event.peer is None else f" {arrow} {event.peer}"
    return f"{event.phase if event.op == 'compute' else event.op} {event.block}{peer}".strip()


def kind_of(event: Event) -> str:
    """What is drawn alike: a phase, also that of an operator of a plan, or a way to move."""
    if event.track == "compute":
        phase = event.phase.rpartition(".")[2]
        return phase if phase in COLOURS else "other"
    if event.op.endswith(("send", "recv")):
        return "send" if event.op.endswith("send") else "receive"
    return "other" if event.op in ("wait", "fetch", "evict") else "collective"


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


def by_track(events: Sequence[Event]) -> dict[tuple[int, Track], list[list[Event]]]:
    """(rank, track) -> its lanes, for every rank from 0 to the last one that did anything."""
    tracks: dict[tuple[int, Track], list[Event]] = {
        (rank, track): []
        for rank in range(1 + max((event.rank for event in events), default=-1))
        for track in TRACKS
    }
    for event in events:
        tracks[event.rank, event.track].append(event)
    return {place: lanes(track_events) for place, track_events in tracks.items()}


def timeline_svg(events: Sequence[Event], limit: int = 4000, unit: str = "s") -> str:
    """Return the timeline of a run: two tracks per rank, time from left to right.

    Waits and frees that take no time are left out; a product is labelled with what it waits for.
    A model's layers are named in a row of their own. Of more than `limit` events the first `limit`
    are drawn, and the title names both counts. `unit` is what one unit of time is called.
    """
    awaited = signals(events)
    shown = [one for one in events if one.end > one.start or kind_of(one) != "other"]
    drawn = sorted(shown, key=lambda event: (event.start, event.end))[:limit]
    rows: list[Row] = []
    bars: list[Bar] = []
    for (rank, track), track_lanes in by_track(drawn).items():
        computes, label = track == "compute", f"rank {rank}"
        layers = [*layers_of(track_lanes[0])] if computes and track_lanes else []
        for layer, run in layers:
            times: dict[str, float] = {}
            for event in run:
                kind = kind_of(event)
                times[kind] = times.get(kind, 0.0) + event.end - event.start
            colour = COLOURS[max(times, key=lambda kind: times[kind])]
            bars.append(Bar(len(rows), run[0].start, run[-1].end, colour,
                            f"rank {rank}: {layer}", layer))  # fmt: skip
        if layers:
            rows.append(Row(label, 20, 2))
        for number, lane in enumerate(track_lanes or [[]] * computes):
            bars += [
                Bar(len(rows), event.start, event.end, COLOURS[kind_of(event)],
                    f"rank {rank}: {event_text(event)}",
                    " after ".join((_label(event), *awaited.get(id(event), ()))),
                    filled=kind_of(event) != "receive")
                for event in lane
            ]  # fmt: skip
            if not computes or number or layers:
                label = ""
            rows.append(Row(label, 20 if computes and not layers else 15, 2))
        rows[-1] = rows[-1]._replace(gap=2 if computes else 16)
    caption = f"{len(drawn)} events"
    if len(drawn) < len(shown):
        caption = f"the first {len(drawn)} of {len(shown)} events"
    kinds = {kind_of(event) for event in drawn}
    legend = {kind: colour for kind, colour in COLOURS.items() if kind in kinds}
    return draw([Panel(caption, rows, bars)], legend, f"Timeline of {caption}", unit)


def signals(events: Sequence[Event]) -> dict[int, tuple[str, ...]]:
    """Product, by its id -> the blocks whose arrival its rank has waited for since the last one.

    In FLUX such a wait is the signal for a tile.
    """
    flying: set[tuple[int, str]] = set()
    arrived: dict[int, list[str]] = {}
    awaited: dict[int, tuple[str, ...]] = {}
    for event in sorted(events, key=lambda event: (event.start, event.end)):
        place = event.rank, event.block
        if event.op == "irecv":
            flying.add(place)
        elif event.op == "wait" and place in flying:
            flying.remove(place)
            arrived.setdefault(event.rank, []).append(event.block)
        elif event.op == "compute" and event.end > event.start and event.rank in arrived:
            awaited[id(event)] = (" ".join(arrived.pop(event.rank)),)
    return awaited


def layers_of(lane: Sequence[Event]) -> Iterator[tuple[str, list[Event]]]:
    """Layers of a model and what runs of each, in turn: `blocks.0` of `blocks.0.proj.forward`."""
    if any("." in event.phase for event in lane):
        for layer, run in groupby(lane, _layer):
            yield layer, list(run)


def _layer(event: Event) -> str:
    named = re.match(r"[^./\[]+(\.\d+)?", event.block)
    return "updates" if event.phase.endswith(".update") or not named else named[0]


def _label(event: Event) -> str:
    """What is written on a bar: a block, and with a message the other end, `I[0,1] > 2`."""
    if event.peer is None:
        return event.block or event.op
    return f"{event.block} {'<' if event.op.endswith('recv') else '>'} {event.peer}"


def timeline_text(events: Sequence[Event], columns: int, unit: str, ranks: int = 16) -> str:
    """Draw the first `ranks` ranks; a letter is what took most of its time, a dot is nothing.

    Each rank has two lines, products above links. `unit` is what one unit of time is called.
    """
    end = max((event.end for event in events), default=0.0)
    last = max((event.rank for event in events), default=-1)
    shown = range(min(last + 1, ranks))
    label = len(f"rank {max(last, 0)}  {_LABELS['compute']}  ")
    width = max(10, columns - label)
    cell = end / width or 1.0
    taken: dict[tuple[int, Track], list[dict[str, float]]] = {
        (rank, track): [{} for _ in range(width)] for rank in shown for track in TRACKS
    }
    """Row -> what part of each of its cells is which letter."""
    for event in events:
        if event.rank not in shown or event.op == "wait":
            continue
        letter, row = LETTERS[kind_of(event)], taken[event.rank, event.track]
        first, stop = event.start / cell, event.end / cell
        for index in range(int(first), min(int(stop) + 1, width)):
            part = min(stop, index + 1) - max(first, index)
            row[index][letter] = row[index].get(letter, 0.0) + part
    lines = [f"{'':{label}}0{f'{end:.4g} {unit}':>{width - 1}}"]
    for (rank, track), row in taken.items():
        head = f"rank {rank}" if track == "compute" else ""
        letters = (max(parts, key=lambda letter: parts[letter]) if sum(parts.values()) >= 0.5
                   else "." for parts in row)  # fmt: skip
        lines.append(f"{head:{label - 10}}{_LABELS[track]:10}{''.join(letters)}")
    more = last + 1 - len(shown)
    if more:
        lines.append(f"and {more} more rank{'s' * (more > 1)}")
    lines.append("F forward  B backward  G gradient  o other  - message  = collective  . nothing")
    return "\n".join(lines) + "\n"


# The same as a Chrome trace


def chrome_trace(events: Sequence[Event]) -> dict[str, object]:
    """Return the Chrome trace of a run, to be saved as JSON and opened at ui.perfetto.dev.

    One process per rank, one thread per lane, one flow from each send to its receive. Times are
    in microseconds.
    """
    entries: list[dict[str, object]] = []
    spans: dict[int, dict[str, object]] = {}
    threads: dict[int, int] = {}
    for (rank, track), track_lanes in by_track(events).items():
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
