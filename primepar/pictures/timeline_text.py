"""The timeline of a run as text: two lines per rank, products above links, time to the right."""

from __future__ import annotations

from collections.abc import Sequence

from primepar.pictures.timeline import kind_of
from primepar.schedule.events import Event

LETTERS = {
    "forward": "F",
    "backward": "B",
    "gradient": "G",
    "send": "-",
    "receive": "-",
    "collective": "=",
    "other": "o",
}
_LABELS = {"compute": "products", "communication": "links"}


def timeline_text(events: Sequence[Event], columns: int, unit: str, ranks: int = 16) -> str:
    """Draw the first `ranks` ranks; a letter is what took most of its time, a dot is nothing.

    `unit` is what one unit of an event's time is called.
    """
    end = max((event.end for event in events), default=0.0)
    last = max((event.rank for event in events), default=-1)
    shown = range(min(last + 1, ranks))
    label = len(f"rank {max(last, 0)}  {_LABELS['compute']}  ")
    width = max(10, columns - label)
    rows = {(rank, track): _Row(width, end) for rank in shown for track in _LABELS}
    for event in events:
        if event.rank in shown and event.op != "wait":
            rows[event.rank, event.track].add(event)
    lines = [f"{'':{label}}0{f'{end:.4g} {unit}':>{width - 1}}"]
    for rank in shown:
        for track, name in _LABELS.items():
            head = f"rank {rank}" if track == "compute" else ""
            text = f"{head:{label - len(_LABELS['compute']) - 2}}{name:10}{rows[rank, track]}"
            lines.append(text)
    more = last + 1 - len(shown)
    if more:
        lines.append(f"and {more} more rank{'s' * (more > 1)}")
    lines.append("F forward  B backward  G gradient  o other  - message  = collective  . nothing")
    return "\n".join(lines) + "\n"


class _Row:
    """One line: how much of each cell was what."""

    def __init__(self, width: int, end: float) -> None:
        self.cells: list[dict[str, float]] = [{} for _ in range(width)]
        self.cell = end / width or 1.0

    def add(self, event: Event) -> None:
        letter = LETTERS[kind_of(event)]
        first, last = event.start / self.cell, event.end / self.cell
        for index in range(int(first), min(int(last) + 1, len(self.cells))):
            part = min(last, index + 1) - max(first, index)
            self.cells[index][letter] = self.cells[index].get(letter, 0.0) + part

    def __str__(self) -> str:
        return "".join(
            max(cell, key=lambda letter: cell[letter]) if sum(cell.values()) >= 0.5 else "."
            for cell in self.cells
        )
