"""The events of a run as a Chrome trace, to be opened at ui.perfetto.dev."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from primepar.pictures.timeline import by_track, event_text
from primepar.schedule.events import Event


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
