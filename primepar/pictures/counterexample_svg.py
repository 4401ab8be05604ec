"""Counterexamples as SVG, one panel below another, legible on light and on dark pages.

What is wrong is outlined in red; arrows show who waits for whom, and where a block goes. The same
structure is drawn as text by `counterexample_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

from primepar.pictures import svg
from primepar.pictures.counterexample_text import (
    blocks_text,
    cycle_rows,
    device_text,
    event_text,
    mesh_rows,
)
from primepar.schedule.counterexample import Arrow, Counterexample, InvolvedInstruction

HIGH, ROW, CHARACTER, CELL = 22, 38, 6.1, 30
LEFT, COLUMNS = 8, 104


class CounterexamplePanel(NamedTuple):
    """One refuted property: its name, its sentence and its counterexample."""

    property: str
    sentence: str
    example: Counterexample


class _Drawn(NamedTuple):
    marks: list[str]
    right: float
    bottom: float


def counterexample_svg(title: str, panels: Sequence[CounterexamplePanel]) -> str:
    """Return the picture of all counterexamples of one target."""
    body, right, y = [svg.text(title, LEFT, 18, font_weight=600)], 640.0, 30.0
    for panel in panels:
        drawn = _panel(panel, y)
        body += drawn.marks
        right, y = max(right, drawn.right), drawn.bottom + 18
    return svg.picture(right + LEFT, y, body, title)


def _panel(panel: CounterexamplePanel, y: float) -> _Drawn:
    marks = [svg.text(f"{panel.property}: {panel.example.kind}", LEFT, y + 14, fill=svg.RED,
                      font_weight=600)]  # fmt: skip
    lines = wrap(panel.sentence.splitlines()[0], COLUMNS)
    marks += [
        svg.text(line, LEFT, y + 32 + 15 * number, font_size=11)
        for number, line in enumerate(lines)
    ]
    right, bottom = LEFT + CHARACTER * max(map(len, lines)), y + 32 + 15 * len(lines)
    for drawing in _drawings(panel.example):
        drawn = drawing(panel.example, bottom)
        marks += drawn.marks
        right, bottom = max(right, drawn.right), drawn.bottom
    return _Drawn(marks, right, bottom)


def _drawings(example: Counterexample) -> Iterator[Callable[[Counterexample, float], _Drawn]]:
    if example.kind == "waiting-cycle":
        yield _cycle
        return
    if example.mesh is not None:
        yield _mesh
    if example.plane is not None:
        yield _plane
    if example.events:
        yield _story


def _cycle(example: Counterexample, y: float) -> _Drawn:
    """One row a rank: what it hangs in, and what it never reaches; the arrows are waits."""
    rows, hidden = cycle_rows(example)
    named = 16 + CHARACTER * max(len(f"rank {hangs.rank}") for hangs, _ in rows)
    wide = max(_width(hangs) for hangs, _ in rows)
    x, to_x = LEFT + named, LEFT + named + wide + 90
    right = to_x + max(_width(never) for _, never in rows)
    marks = [
        svg.text("hangs in", x, y + 12, font_size=11),
        svg.text("waits for", x + wide + 22, y + 12, font_size=11),
        svg.text("never reached", to_x, y + 12, font_size=11),
    ]
    tops = [y + 22 + ROW * number for number in range(len(rows))]
    for number, (top, (hangs, never)) in enumerate(zip(tops, rows, strict=True)):
        marks.append(svg.text(f"rank {hangs.rank}", LEFT, top + 15, font_weight=600))
        marks += [*_box(hangs, x, top), *_box(never, to_x, top)]
        target = tops[(number + 1) % len(tops)]
        dashed = hidden > 0 and number == len(rows) - 2
        label = f"rank {hangs.rank} waits for rank {rows[(number + 1) % len(rows)][0].rank}"
        marks += _curve(
            (x + _width(hangs), top + HIGH / 2), (to_x, target + HIGH / 2), label, dashed
        )
    if hidden:
        marks.append(svg.text(f"{hidden} more ranks", LEFT, tops[-1] - 6, font_size=10))
    return _Drawn(marks, right, tops[-1] + ROW)


def _story(example: Counterexample, y: float) -> _Drawn:
    """A column for each rank, downward in time."""
    ranks = list(dict.fromkeys(event.rank for event in example.events))
    lefts, x = {}, float(LEFT)
    marks = []
    for rank in ranks:
        lefts[rank] = x
        marks.append(svg.text(f"rank {rank}", x, y + 14, font_weight=600))
        events = [event for event in example.events if event.rank == rank]
        x += max(_width(event) + CHARACTER * len(event.role) + 12 for event in events) + 40
    tops = [y + 24 + ROW * place for place in range(len(example.events))]
    for event, top in zip(example.events, tops, strict=True):
        marks += _box(event, lefts[event.rank], top)
        if event.role:
            after = lefts[event.rank] + _width(event) + 6
            fill = svg.RED if event.wrong else svg.GREY
            marks.append(svg.text(event.role, after, top + 15, font_size=10, fill=fill))
    for arrow in example.arrows:
        marks += _arrow(example, arrow, lefts, tops)
    return _Drawn(marks, x, tops[-1] + ROW)


def _arrow(
    example: Counterexample, arrow: Arrow, lefts: dict[int, float], tops: list[float]
) -> Iterator[str]:
    source, target = example.events[arrow.source], example.events[arrow.target]
    x, y = lefts[source.rank] + 14, tops[arrow.source] + HIGH
    to_x, to_y = lefts[target.rank] + 14, tops[arrow.target]
    bend = (to_y - y) * 0.6
    yield svg.element("path", svg.title(arrow.means), fill="none", stroke=svg.GREY,
                      stroke_width=1.6, d=f"M{x:.1f} {y:.1f}C{x:.1f} {y + bend:.1f} {to_x:.1f} "
                      f"{to_y - bend - 4:.1f} {to_x:.1f} {to_y - 5:.1f}",
                      **_dashes(arrow.means == "never reaches"))  # fmt: skip
    yield svg.element("path", d=f"M{to_x:.1f} {to_y:.1f}l-3.6 -7h7.2z", fill=svg.GREY)
    if arrow.means != "moves to":
        yield svg.text(arrow.means, (x + to_x) / 2 + 8, (y + to_y) / 2 + 3, font_size=10)


def _box(event: InvolvedInstruction, x: float, y: float) -> Iterator[str]:
    colour = svg.RED if event.wrong else svg.GREY
    yield svg.element("rect", svg.title(f"rank {event.rank}: {event_text(event)} {event.role}"),
                      x=x, y=y, width=_width(event), height=HIGH, rx=5, fill=colour,
                      fill_opacity=0.13, stroke=colour, stroke_width=1.4)  # fmt: skip
    yield svg.text(event_text(event), x + 8, y + 15, font_family=svg.MONO, font_size=10,
                   fill=colour)  # fmt: skip


def _width(event: InvolvedInstruction) -> float:
    return 16 + CHARACTER * len(event_text(event))


def _curve(
    start: tuple[float, float], end: tuple[float, float], label: str, dashed: bool
) -> Iterator[str]:
    """An arrow to the right, from one point to another."""
    (x, y), (to_x, to_y) = start, end
    bend = (to_x - x) * 0.55
    yield svg.element("path", svg.title(label), fill="none", stroke=svg.RED, stroke_width=1.6,
                      d=f"M{x:.1f} {y:.1f}C{x + bend:.1f} {y:.1f} {to_x - bend - 4:.1f} "
                      f"{to_y:.1f} {to_x - 5:.1f} {to_y:.1f}", **_dashes(dashed))  # fmt: skip
    yield svg.element("path", d=f"M{to_x:.1f} {to_y:.1f}l-7 -3.6v7.2z", fill=svg.RED)


def _dashes(dashed: bool) -> dict[str, str]:
    return {"stroke_dasharray": "4 3"} if dashed else {}


def _plane(example: Counterexample, y: float) -> _Drawn:
    """How often each sub-operator is computed; the wrong one in red."""
    plane, cell = example.plane, example.sub_operator or {}
    assert plane is not None
    rest = [
        f"{dim}={index}" for dim, index in cell.items() if dim not in (plane.rows, plane.columns)
    ]
    heading = f"{', '.join([str(example.phase), *rest])}: times computed"
    marks = [svg.text(heading, LEFT, y + 14, font_size=11)]
    (top, left), x, y = plane.first, LEFT + 44.0, y + 40
    for row, counts in enumerate(plane.counts):
        if plane.rows:
            marks.append(_name(f"{plane.rows}={top + row}", x - 22, y + CELL * row + 18))
        for column, count in enumerate(counts):
            if row == 0:
                marks.append(
                    _name(f"{plane.columns}={left + column}", x + CELL * column + 14, y - 6)
                )
            wrong = (cell.get(plane.rows, 0), cell[plane.columns]) == (top + row, left + column)
            marks += _cell(str(count), x + CELL * column, y + CELL * row, wrong)
    return _Drawn(marks, x + CELL * len(plane.counts[0]), y + CELL * len(plane.counts) + 10)


def _mesh(example: Counterexample, y: float) -> _Drawn:
    """The devices of the mesh by rank; the involved in red, with their steps."""
    mesh = example.mesh or {}
    sides = ", ".join(f"{side}={length}" for side, length in (example.sides or {}).items())
    marks = [svg.text(f"devices at {sides}" if sides else "devices", LEFT, y + 14, font_size=11)]
    rows = mesh_rows(example, mesh)
    named = 16 + CHARACTER * max(map(len, rows))
    last, x, y = (tuple(mesh)[-1] if mesh else ""), LEFT + named, y + 40
    for row, (name, ranks) in enumerate(rows.items()):
        marks.append(_name(name, LEFT + named / 2 - 6, y + CELL * row + 18))
        for column, rank in enumerate(ranks):
            if row == 0 and last:
                marks.append(_name(f"{last}={column}", x + CELL * column + 14, y - 6))
            marks += _cell(str(rank), x + CELL * column, y + CELL * row, rank in example.ranks)
    bottom = y + CELL * len(rows) + 16
    captions = [device_text(device) for device in example.devices]
    captions += [blocks_text(example)] if example.blocks else []
    for number, caption in enumerate(captions):
        marks.append(svg.text(caption, LEFT, bottom + 15 * number, font_size=11, fill=svg.RED))
    right = x + CELL * max(len(ranks) for ranks in rows.values())
    return _Drawn(marks, right, bottom + 15 * len(captions))


def _name(content: str, x: float, y: float) -> str:
    return svg.text(content, x, y, text_anchor="middle", font_family=svg.MONO, font_size=10)


def _cell(content: str, x: float, y: float, wrong: bool) -> Iterator[str]:
    colour = svg.RED if wrong else svg.GREY
    yield svg.element("rect", x=x + 1, y=y + 1, width=CELL - 2, height=CELL - 2, rx=5, fill=colour,
                      fill_opacity=0.13, stroke=colour,
                      stroke_width=2 if wrong else 0.6)  # fmt: skip
    yield svg.text(content, x + CELL / 2, y + CELL / 2 + 4, text_anchor="middle",
                   font_family=svg.MONO, font_size=11, font_weight=600, fill=colour)  # fmt: skip
