"""What a space-time picture shows besides its blocks: ranks that hang, and the mesh."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

from primepar.pictures import svg
from primepar.pictures.grid_layout import PAD, ROW_GAP, TOP, WAITS, Picture

CELL_WIDE, CELL_HIGH, LINE = 34, 24, 14


class Marks(NamedTuple):
    """Elements, and how much room they take."""

    marks: list[str]
    high: float


def standstill_marks(layout: Picture, rank: int) -> Iterator[str]:
    """Where a rank hangs, with arrows to those that it waits for."""
    yield from _box(layout, rank)
    x = layout.edges[layout.columns - 1] + layout.standing_width
    for other in layout.standing[rank].awaits:
        start, end = _middle(layout, rank) - 5, _middle(layout, other) + 5
        bend = x + min(WAITS - 14, 24 + 14 * abs(other - rank))
        yield svg.element(
            "path",
            svg.title(f"device {rank} waits for device {other}"),
            d=f"M{x:.1f} {start:.1f}C{bend:.1f} {start:.1f} {bend:.1f} {end:.1f} "
            f"{x + 6:.1f} {end:.1f}",
            fill="none",
            stroke=svg.RED,
            stroke_width=1.6,
        )
        yield svg.element("path", d=f"M{x:.1f} {end:.1f}l7 -3.6v7.2z", fill=svg.RED)


def _middle(layout: Picture, rank: int) -> float:
    return TOP + rank * (layout.cell_height + ROW_GAP) + layout.cell_height / 2


def _box(layout: Picture, rank: int) -> Iterator[str]:
    """A rank that hangs, in red, or one at its end."""
    lines, left = layout.standing[rank].lines, layout.edges[layout.columns - 1]
    colour = svg.RED if len(lines) > 1 else svg.GREY
    yield svg.element(
        "rect",
        svg.title(f"device {rank}: " + "; ".join(lines)),
        x=left,
        y=_middle(layout, rank) - layout.cell_height / 2,
        width=layout.standing_width,
        height=layout.cell_height,
        rx=6,
        fill=colour,
        fill_opacity=0.08,
        stroke=colour,
        stroke_width=1.6,
    )
    first = _middle(layout, rank) - LINE / 2 * (len(lines) - 1) + 3
    for number, line in enumerate(lines):
        yield svg.text(line, left + PAD, first + LINE * number, font_family=svg.MONO, font_size=10,
                       fill=colour)  # fmt: skip


def mesh_marks(devices: Sequence[str], top: float) -> Marks:
    """The mesh: which device is where. Nothing unless the places are on two axes."""
    parts = [place.replace(",", " ").split() for place in devices]
    places = [dict(part.split("=") for part in axes) for axes in parts]
    if len({tuple(place) for place in places}) != 1 or len(places[0]) != 2:
        return Marks([], 0.0)
    rows, columns = places[0]
    ranks = {(int(place[rows]), int(place[columns])): rank for rank, place in enumerate(places)}
    high, wide = (1 + max(indices) for indices in zip(*ranks, strict=True))
    left, y = 44.0, top + 26
    marks = [svg.text(f"mesh of {len(places)} devices", 4, top + 4, font_size=11)]
    marks += [_name(f"{columns}={c}", left + CELL_WIDE * (c + 0.5), y - 5) for c in range(wide)]
    marks += [_name(f"{rows}={r}", 22, y + CELL_HIGH * (r + 0.5) + 4) for r in range(high)]
    for row, column in product(range(high), range(wide)):
        x, cell_top = left + CELL_WIDE * column, y + CELL_HIGH * row
        marks.append(svg.element("rect", x=x + 1, y=cell_top + 1, width=CELL_WIDE - 2,
                                 height=CELL_HIGH - 2, rx=5, fill=svg.GREY, fill_opacity=0.13,
                                 stroke=svg.GREY, stroke_width=0.8))  # fmt: skip
        name = str(ranks[row, column])
        marks.append(svg.text(name, x + CELL_WIDE / 2, cell_top + CELL_HIGH / 2 + 4,
                              text_anchor="middle", font_size=11, font_weight=600))  # fmt: skip
    return Marks(marks, 26 + CELL_HIGH * high + 20.0)


def _name(content: str, x: float, y: float) -> str:
    return svg.text(content, x, y, text_anchor="middle", font_family=svg.MONO, font_size=10)
