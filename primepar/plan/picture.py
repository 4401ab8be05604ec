"""A plan as SVG: operators downward, and for each the layouts that it takes and leaves.

A tile is a layout, rows downward and columns to the right. Each of its blocks names the devices
that hold it, in the colour of the first of them. What moves between two operators is printed in
red.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from primepar.pictures import svg
from primepar.plan.description import MOST_CELLS, Description, OperatorRow, cut_text, holders
from primepar.schedule.layout import Layout

CELL_HIGH, CELL_PAD, GAP, TOP = 15, 10, 14, 62
LEFT, TILES, TILE_GAP = 8, 250, 36
HEADS = ("takes", "leaves", "leaves dI")


def plan_svg(description: Description) -> str:
    """Return the picture of a plan, legible on light and on dark pages."""
    width = max(map(_width, description.layouts.values()))
    columns = [TILES + place * (width + TILE_GAP) for place in range(len(HEADS) + 1)]
    body = [svg.text(description.title, LEFT, 18, font_weight=600), *_heads(columns)]
    y = float(TOP)
    for row in description.rows:
        body += _row(description, row, columns, y)
        y += _height(description, row) + GAP
    for note in description.notes:
        body.append(svg.text(note, LEFT, y + 12, font_size=10))
        y += 16
    return svg.picture(max(columns[-1] + 200.0, 720.0), y + 12, body, description.title)


def _heads(columns: list[int]) -> Iterator[str]:
    names = ("operator", "sequence", *HEADS, "moved before, and back")
    places = (LEFT, 160, *columns)
    for name, x in zip(names, places, strict=True):
        yield svg.text(name, x, TOP - 14, font_size=11)


def _row(description: Description, row: OperatorRow, columns: list[int], y: float) -> Iterator[str]:
    baseline = y + _height(description, row) / 2 + 4
    yield svg.text(row.name, LEFT, baseline, font_weight=600)
    yield svg.text(row.sequence, 160, baseline, font_family=svg.MONO)
    letters = (row.takes, row.leaves, row.gradient)
    for letter, x in zip(letters, columns, strict=False):
        layout = description.layouts.get(letter)
        yield from _tile(letter, layout, x, y) if layout else ()
    if row.before or row.back:
        moved = f"{row.before:,}, {row.back:,}"
        yield svg.text(moved, columns[-1], baseline, fill=svg.RED, font_family=svg.MONO)


def _tile(letter: str, layout: Layout, x: float, y: float) -> Iterator[str]:
    """A layout; only in words where it has too many blocks."""
    yield svg.text(letter, x - 14, y + 11, font_size=10)
    if max(layout.grid) > MOST_CELLS:
        yield svg.text(cut_text(layout), x, y + 11, font_size=10)
        return
    width = _cell_width(layout)
    for row, column in product(*map(range, layout.grid)):
        devices = holders(layout, row, column)
        left, top = x + column * width, y + row * CELL_HIGH
        first = int(devices.replace("-", ",").split(",")[0])
        yield svg.element(
            "rect", svg.title(f"{letter}: block ({row}, {column}) on device {devices}"),
            x=left + 0.5, y=top + 0.5, width=width - 1, height=CELL_HIGH - 1, rx=3,
            fill=svg.under_white(first / layout.ranks),
        )  # fmt: skip
        middle = left + width / 2
        yield svg.text(devices, middle, top + 11, fill=svg.WHITE, font_size=9, text_anchor="middle")


def _cell_width(layout: Layout) -> int:
    cells = (holders(layout, *block) for block in product(*map(range, layout.grid)))
    return CELL_PAD + 6 * max(map(len, cells))


def _width(layout: Layout) -> int:
    if max(layout.grid) > MOST_CELLS:
        return 6 * len(cut_text(layout))
    return layout.grid[1] * _cell_width(layout)


def _height(description: Description, row: OperatorRow) -> float:
    letters = (row.takes, row.leaves, row.gradient)
    grids = [
        description.layouts[letter].grid for letter in letters if letter in description.layouts
    ]
    return CELL_HIGH * max((rows for rows, _ in grids if rows <= MOST_CELLS), default=1)
