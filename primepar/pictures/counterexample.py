"""A counterexample as a small picture, in text and as SVG.

Three figures are enough for all kinds. `Waits` is a cycle of ranks: a row for each, with arrows
from what hangs to what the rank that it waits for never reaches. `Story` is any other list of
instructions, a column for each rank, downward in time. `GridTable` has the devices of a mesh, or
how often each sub-operator is computed. What is wrong is in brackets or marked by `!`, and red.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from textwrap import wrap
from typing import NamedTuple

from primepar.pictures import svg
from primepar.schedule.evidence import (
    Arrow,
    Counterexample,
    InvolvedInstruction,
    Plane,
)

MOST_ROWS = 8
"""Rows of a cycle or of a mesh that are drawn; the others are counted."""
MOST_COLUMNS = 16
"""Columns of a mesh that are drawn, around the first device that is involved."""
HIGH, ROW, CHARACTER, LEFT, COLUMNS = 22, 38, 6.1, 8, 104
"""Of a box and of its row, in pixels; width of a character; margin; characters of a sentence."""


class CounterexamplePanel(NamedTuple):
    """One refuted property: its name, its sentence and its counterexample."""

    property: str
    sentence: str
    example: Counterexample


def counterexample_lines(example: Counterexample, width: int = 94) -> list[str]:
    """Lines of the picture; a story in columns is at most `width` wide, else it is a list."""
    lines: list[str] = []
    for figure in _figures(example):
        lines += ["", *figure.lines(width)] if lines else figure.lines(width)
    return [line.rstrip() for line in lines]


def counterexample_svg(title: str, panels: Sequence[CounterexamplePanel]) -> str:
    """Return one picture of all counterexamples of a target, one below another."""
    body, right, y = [svg.text(title, LEFT, 18, font_weight=600)], 640.0, 30.0
    for panel in panels:
        heading = f"{panel.property}: {panel.example.kind}"
        body.append(svg.text(heading, LEFT, y + 14, fill=svg.RED, font_weight=600))
        sentence = wrap(panel.sentence.splitlines()[0], COLUMNS)
        for number, line in enumerate(sentence):
            body.append(svg.text(line, LEFT, y + 32 + 15 * number, font_size=11))
        y += 32 + 15 * len(sentence)
        for figure in _figures(panel.example):
            drawn = figure.drawn(y)
            body += drawn.marks
            right, y = max(right, drawn.right), drawn.bottom
        y += 18
    return svg.picture(right + LEFT, y, body, title)


def _figures(example: Counterexample) -> Iterator[Waits | Story | GridTable]:
    """Choose what is drawn of a counterexample."""
    if example.kind == "waiting-cycle":
        yield Waits(tuple(zip(example.events[::2], example.events[1::2], strict=True)))
        return
    if example.mesh is not None and (table := _mesh(example, example.mesh)).cells:
        yield table
    if example.plane is not None:
        yield _plane(example, example.plane, example.sub_operator or {})
    if example.events:
        yield Story(example.events, example.arrows)


class Waits(NamedTuple):
    """A cycle: what each rank hangs in and never reaches; each waits for the next."""

    rows: tuple[tuple[InvolvedInstruction, InvolvedInstruction], ...]

    @property
    def shown(self) -> tuple[tuple[InvolvedInstruction, InvolvedInstruction], ...]:
        """The rows that are drawn: the first of many, and the last, which closes the cycle."""
        if len(self.rows) <= MOST_ROWS:
            return self.rows
        return (*self.rows[: MOST_ROWS - 1], self.rows[-1])

    @property
    def hidden(self) -> str:
        """How many ranks are not drawn, if any."""
        count = len(self.rows) - len(self.shown)
        return f"{count} more ranks" if count else ""

    def lines(self, width: int) -> list[str]:
        """A lane to the right of what hangs leads down to the rank that is waited for."""
        named = max(len(f"rank {hangs.rank}") for hangs, _ in self.shown)
        wide = max(len("hangs in"), *(len(_text(hangs)) for hangs, _ in self.shown))
        lines = [f"{'':{named}}  {'hangs in':{wide}}  waits for    never reached"]
        for number, (hangs, never) in enumerate(self.shown):
            lane = " --.   '--|--> " if number else " --.      .--> "
            rank = f"rank {hangs.rank}"
            lines.append(f"{rank:{named}}  {_text(hangs):{wide}}{lane}{_text(never)}")
            lines.append(f"{'':{named + 2 + wide}}   '---.  |")
        if self.hidden:
            lines[-3] += f"     {self.hidden}"
        return [*lines[:-1], f"{'':{named + 2 + wide}}   '------'"]

    def drawn(self, y: float) -> svg.Drawn:
        """Two boxes a row, and a curve from what hangs in one row to the next row's other box."""
        x = LEFT + 16 + CHARACTER * max(len(f"rank {hangs.rank}") for hangs, _ in self.shown)
        wide = max(_width(hangs) for hangs, _ in self.shown)
        to_x = x + wide + 90
        heads = ((x, "hangs in"), (x + wide + 22, "waits for"), (to_x, "never reached"))
        marks = [svg.text(head, left, y + 12, font_size=11) for left, head in heads]
        tops = [y + 22 + ROW * number for number in range(len(self.shown))]
        for number, (top, (hangs, never)) in enumerate(zip(tops, self.shown, strict=True)):
            following = (number + 1) % len(tops)
            start = x + _width(hangs), top + HIGH / 2
            marks += [
                svg.text(f"rank {hangs.rank}", LEFT, top + 15, font_weight=600),
                *_box(hangs, x, top), *_box(never, to_x, top),
                *svg.arrow(start, (to_x, tops[following] + HIGH / 2), svg.RED,
                           f"rank {hangs.rank} waits for rank {self.shown[following][0].rank}",
                           dashed=bool(self.hidden) and number == len(tops) - 2),
            ]  # fmt: skip
        if self.hidden:
            marks.append(svg.text(self.hidden, LEFT, tops[-1] - 6, font_size=10))
        right = to_x + max(_width(never) for _, never in self.shown)
        return svg.Drawn(marks, right, tops[-1] + ROW)


class Story(NamedTuple):
    """Instructions in the order in which they happen, and arrows from one to another."""

    events: tuple[InvolvedInstruction, ...]
    arrows: tuple[Arrow, ...]

    def lines(self, width: int) -> list[str]:
        """Columns of ranks where there is room, else a list."""
        widths = {rank: 2 + max(18, *(len(_marked(event)) for event in events))
                  for rank, events in self._by_rank().items()}  # fmt: skip
        if sum(widths.values()) - 2 > width:
            return self._list()
        starts = dict(zip(widths, accumulate(widths.values(), initial=0), strict=False))
        lines = ["".join(f"  rank {rank}".ljust(wide) for rank, wide in widths.items())]
        for place, event in enumerate(self.events):
            for arrow in self.arrows:
                if arrow.target == place:
                    source, target = starts[self.events[arrow.source].rank], starts[event.rank]
                    if source != target:
                        # A line from the column of one rank to that of another, with its meaning.
                        line = f" {arrow.means} ".center(abs(target - source) - 2, "-")
                        drawn = f"'{line}>." if target > source else f".<{line}'"
                        lines.append(" " * (min(source, target) + 2) + drawn)
                    elif arrow.means != "moves to":
                        lines.append(" " * source + f"  | {arrow.means}")
            lines.append(" " * starts[event.rank] + _marked(event))
        return lines

    def _by_rank(self) -> dict[int, list[InvolvedInstruction]]:
        by_rank: dict[int, list[InvolvedInstruction]] = {}
        for event in self.events:
            by_rank.setdefault(event.rank, []).append(event)
        return by_rank

    def _list(self) -> list[str]:
        lines = []
        for place, event in enumerate(self.events):
            lines += [f"      | {arrow.means}" for arrow in self.arrows if arrow.target == place]
            lines.append(f"{_marked(event)}  on rank {event.rank}")
        return lines

    def drawn(self, y: float) -> svg.Drawn:
        """A box for each instruction with its role next to it; arrows lead down."""
        lefts, x, marks = dict[int, float](), float(LEFT), list[str]()
        for rank, events in self._by_rank().items():
            lefts[rank] = x
            marks.append(svg.text(f"rank {rank}", x, y + 14, font_weight=600))
            x += max(_width(event) + CHARACTER * len(event.role) + 12 for event in events) + 40
        tops = [y + 24 + ROW * place for place in range(len(self.events))]
        for event, top in zip(self.events, tops, strict=True):
            marks += _box(event, lefts[event.rank], top)
            if event.role:
                after, fill = lefts[event.rank] + _width(event) + 6, _colour(event)
                marks.append(svg.text(event.role, after, top + 15, font_size=10, fill=fill))
        for arrow in self.arrows:
            start = lefts[self.events[arrow.source].rank] + 14, tops[arrow.source] + HIGH
            end = lefts[self.events[arrow.target].rank] + 14, tops[arrow.target]
            marks += svg.arrow(start, end, svg.GREY, arrow.means, points="down",
                               dashed=arrow.means == "never reaches")  # fmt: skip
            if arrow.means != "moves to":
                middle = (start[0] + end[0]) / 2 + 8, (start[1] + end[1]) / 2 + 3
                marks.append(
                    svg.text(
                        arrow.means,
                        *middle,
                        font_size=10,
                        stroke=svg.PAPER,
                        stroke_width=4,
                        paint_order="stroke",
                    )
                )
        return svg.Drawn(marks, x, tops[-1] + ROW)


class GridTable(NamedTuple):
    """Numbers in named rows and columns, some of them wrong, and lines about them."""

    heading: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[int, ...], ...]
    wrong: frozenset[tuple[int, int]]
    captions: tuple[str, ...] = ()

    def lines(self, width: int) -> list[str]:
        """A line for each row; wrong cells are in brackets."""
        label = max(map(len, self.rows), default=0)
        longest = max(len(str(cell)) for row in self.cells for cell in row)
        wide = max(longest + 4, *(len(name) + 2 for name in self.columns))
        lines = [self.heading]
        lines.append(f"  {'':{label}}" + "".join(f"{name} ".rjust(wide) for name in self.columns))
        for row, (name, cells) in enumerate(zip(self.rows, self.cells, strict=True)):
            texts = (f"[{cell}]" if (row, column) in self.wrong else f"{cell} "
                     for column, cell in enumerate(cells))  # fmt: skip
            lines.append(f"  {name:{label}}" + "".join(text.rjust(wide) for text in texts))
        return lines + [f"  {caption}" for caption in self.captions]

    def drawn(self, y: float) -> svg.Drawn:
        """A square for each cell, and the captions in red below."""
        marks, right, bottom = svg.table(
            self.rows, self.columns, self.cells, self.wrong, LEFT, y + 22
        )
        marks = [svg.text(self.heading, LEFT, y + 14, font_size=11), *marks]
        for number, caption in enumerate(self.captions):
            marks.append(svg.text(caption, LEFT, bottom + 9 + 15 * number, font_size=11,
                                  fill=svg.RED))  # fmt: skip
        return svg.Drawn(marks, right, bottom + 15 * len(self.captions) + 8)


def _plane(example: Counterexample, plane: Plane, wrong: dict[str, int]) -> GridTable:
    """How often each sub-operator is computed around the wrong one, over two dims."""
    others = [f"{dim}={index}" for dim, index in wrong.items()
              if dim not in (plane.rows, plane.columns)]  # fmt: skip
    (top, left), high, wide = plane.first, len(plane.counts), len(plane.counts[0])
    return GridTable(
        f"{', '.join([str(example.phase), *others])}: times computed",
        tuple(f"{plane.rows}={top + row}" if plane.rows else "" for row in range(high)),
        tuple(f"{plane.columns}={left + column}" for column in range(wide)),
        plane.counts,
        frozenset({(wrong.get(plane.rows, top) - top, wrong[plane.columns] - left)}),
    )


def _mesh(example: Counterexample, mesh: dict[str, int]) -> GridTable:
    """The devices of the mesh by rank, with the last axis to the right; the involved are wrong."""
    *others, last = tuple(mesh) or ("",)
    rows: dict[str, dict[int, int]] = {}
    for rank, coordinates in enumerate(example.places):
        place = dict(zip(mesh, coordinates, strict=True))
        name = " ".join(f"{axis}={place[axis]}" for axis in others)
        rows.setdefault(name, {})[place.get(last, 0)] = rank
    length, middle = mesh.get(last, 1), 0
    if example.ranks and example.places:
        middle = dict(zip(mesh, example.places[example.ranks[0]], strict=True)).get(last, 0)
    first = max(0, min(middle - MOST_COLUMNS // 2, length - MOST_COLUMNS))
    columns = range(first, min(first + MOST_COLUMNS, length))
    shown = {
        name: tuple(row[column] for column in columns)
        for name, row in sorted(rows.items())
        if len(rows) <= MOST_ROWS or {*row.values()} & {*example.ranks}
    }
    sides = ", ".join(f"{side}={length}" for side, length in (example.sides or {}).items())
    return GridTable(
        f"devices at {sides}" if sides else "devices",
        tuple(shown),
        tuple(f"{last}={column}" if last else "" for column in columns),
        tuple(shown.values()),
        frozenset((row, column) for row, ranks in enumerate(shown.values())
                  for column, rank in enumerate(ranks) if rank in example.ranks),
        (*map(str, example.devices), *_blocks(example)),
    )  # fmt: skip


def _blocks(example: Counterexample) -> Iterator[str]:
    """What is wanted on the device of a mesh, and what is there."""
    if not example.blocks:
        return
    want, *got = example.blocks
    if example.kind == "wrong-place":
        yield f"needs {want}, has {' '.join(got) or 'nothing'}"
    else:
        yield f"{want}: {'on no device' if example.kind == 'nowhere' else 'without a home'}"


def _text(event: InvolvedInstruction) -> str:
    """`3 send X -> 1`, or what there is without an index."""
    return event.text if event.index is None else f"{event.index} {event.text}"


def _marked(event: InvolvedInstruction) -> str:
    role = f"  ({event.role})" if event.role else ""
    return f"{'! ' if event.wrong else '  '}{_text(event)}{role}"


def _colour(event: InvolvedInstruction) -> str:
    return svg.RED if event.wrong else svg.GREY


def _width(event: InvolvedInstruction) -> float:
    return 16 + CHARACTER * len(_text(event))


def _box(event: InvolvedInstruction, x: float, y: float) -> Iterator[str]:
    colour = _colour(event)
    yield svg.element("rect", svg.title(f"rank {event.rank}: {_text(event)} {event.role}"),
                      x=x, y=y, width=_width(event), height=HIGH, rx=5, fill=colour,
                      fill_opacity=0.13, stroke=colour, stroke_width=1.4)  # fmt: skip
    yield svg.mono(_text(event), x + 8, y + 15, fill=colour)
