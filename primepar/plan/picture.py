"""A plan as SVG: operators downward, and for each the layouts that it takes and leaves.

A tile is a layout, rows downward and columns to the right: each of its blocks says which devices
hold it, in the colour of the first of them. What moves between two operators stands in red.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from primepar.pictures import svg
from primepar.plan.description import MOST_CELLS, Description, OperatorRow, holders, told
from primepar.schedule.layout import Layout

CELL_HIGH, CELL_PAD, GAP, TOP = 15, 10, 14, 62
LEFT, TILES, TILE_GAP = 8, 250, 36
HEADS = ("takes", "leaves", "leaves dI")


def plan_svg(description: Description) -> str:
    """Return the picture of a plan, legible on light and on dark pages."""
    wide = max(map(_wide, description.layouts.values()))
    columns = [TILES + place * (wide + TILE_GAP) for place in range(len(HEADS) + 1)]
    body = [svg.text(description.title, LEFT, 18, font_weight=600), *_heads(columns)]
    y = float(TOP)
    for row in description.rows:
        body += _row(description, row, columns, y)
        y += _high(description, row) + GAP
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
    middle = y + _high(description, row) / 2 + 4
    yield svg.text(row.name, LEFT, middle, font_weight=600)
    yield svg.text(row.sequence, 160, middle, font_family=svg.MONO)
    letters = (row.takes, row.leaves, row.gradient)
    for letter, x in zip(letters, columns, strict=False):
        layout = description.layouts.get(letter)
        yield from _tile(letter, layout, x, y) if layout else ()
    if row.before or row.back:
        moved = f"{row.before:,}, {row.back:,}"
        yield svg.text(moved, columns[-1], middle, fill=svg.RED, font_family=svg.MONO)


def _tile(letter: str, layout: Layout, x: float, y: float) -> Iterator[str]:
    """A layout; only its words where it has too many blocks."""
    yield svg.text(letter, x - 14, y + 11, font_size=10)
    if max(layout.grid) > MOST_CELLS:
        yield svg.text(told(layout), x, y + 11, font_size=10)
        return
    wide = _cell_wide(layout)
    for row, column in product(*map(range, layout.grid)):
        devices = holders(layout, row, column)
        at_x, at_y = x + column * wide, y + row * CELL_HIGH
        first = int(devices.replace("-", ",").split(",")[0])
        yield svg.element(
            "rect", svg.title(f"{letter}: block ({row}, {column}) on device {devices}"),
            x=at_x + 0.5, y=at_y + 0.5, width=wide - 1, height=CELL_HIGH - 1, rx=3,
            fill=svg.under_white(first / layout.ranks),
        )  # fmt: skip
        middle = at_x + wide / 2
        yield svg.text(
            devices, middle, at_y + 11, fill=svg.WHITE, font_size=9, text_anchor="middle"
        )


def _cell_wide(layout: Layout) -> int:
    cells = (holders(layout, *block) for block in product(*map(range, layout.grid)))
    return CELL_PAD + 6 * max(map(len, cells))


def _wide(layout: Layout) -> int:
    if max(layout.grid) > MOST_CELLS:
        return 6 * len(told(layout))
    return layout.grid[1] * _cell_wide(layout)


def _high(description: Description, row: OperatorRow) -> float:
    letters = (row.takes, row.leaves, row.gradient)
    grids = [description.layouts[each].grid for each in letters if each in description.layouts]
    return CELL_HIGH * max((rows for rows, _ in grids if rows <= MOST_CELLS), default=1)
