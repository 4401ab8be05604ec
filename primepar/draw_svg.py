"""The space-time grid as SVG: devices downward, steps to the right, blocks on their way between.

Every bar is a block in use: filled where it is read, outlined where it is summed into. A straight
line is a block that stays, a curve one that hops to another device while products run. Bars of
one tensor share a hue; each block has a shade of its own, so that the eye can follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from colorsys import hls_to_rgb
from typing import NamedTuple

from primepar import svg
from primepar.draw import Cell, Collective, SpaceTime, cell_lines, equation, head
from primepar.schedule.operators import parse_block

_SLOTS = {"I": 0, "W": 1, "O": 2}
_HUES = ((214, 0.45), (24, 0.42), (156, 0.36), (288, 0.47))
_BAR, _HIGH, _SPACE, _PAD = 60, 17, 3, 6
_GUTTER, _END, _RAIL = 50, 20, 10
_LEFT, _TOP, _ROW_GAP, _HEADING = 78, 78, 12, 182


class Place(NamedTuple):
    """A bar: the block that a rank uses in a column, or that arrives before it."""

    column: int
    rank: int
    block: str


class Hop(NamedTuple):
    """A block on its way from one bar to another."""

    source: Place
    target: Place


class _Layout:
    """What is drawn and where, in pixels; computed once."""

    def __init__(self, grid: SpaceTime) -> None:
        self.cells = {
            (cell.rank, column): cell
            for column, cells in enumerate(grid.cells)
            for cell in cells
            if cell is not None
        }
        self.ranks, self.columns = len(grid.devices), len(grid.cells)
        self.bars = {place: _blocks(cell) for place, cell in self.cells.items()}
        self.hops = [
            hop for (_, column), cell in self.cells.items() for hop in self._hops(column, cell)
        ]
        arriving = {hop.target for hop in self.hops}
        self.parked = {place for place in arriving if not self.has_bar(place)}
        self.stays = [
            Hop(Place(column, rank, block), after)
            for (rank, column), blocks in self.bars.items()
            for block in blocks
            if self.has_bar(after := Place(column + 1, rank, block)) and after not in arriving
        ]
        self.stages = [head(cells).phase for cells in grid.cells]
        self.collectives = [self._collectives(column) for column in range(self.columns)]
        self.shades = _shades(
            {place.block for place in self.parked}.union(*self.bars.values() or [()])
        )
        slots = max(map(len, self.bars.values()), default=1)
        self.slots = max(slots, 3 if self.parked else 1)
        self.cell_height = self.slots * (_HIGH + _SPACE) - _SPACE + 2 * _PAD
        self.edges = self._edges()

    def has_bar(self, place: Place) -> bool:
        """Whether the cell of `place` shows its block."""
        return place.block in self.bars.get((place.rank, place.column), ())

    def _hops(self, column: int, cell: Cell) -> Iterator[Hop]:
        """Hops that leave a cell; a partial sum is the one that the column before has left."""
        written = {product.writes for product in cell.products}
        for message in cell.messages:
            if message.leaves:
                partial = Place(column, message.peer, message.block)
                before = Place(column - 1, cell.rank, message.block)
                if self.has_bar(partial) and self.has_bar(before) and (
                    message.block not in written
                    and message.block in self._written(message.peer, column)
                ):  # fmt: skip
                    yield Hop(before, partial)
                else:
                    source = Place(column, cell.rank, message.block)
                    yield Hop(source, Place(column + 1, message.peer, message.block))

    def _written(self, rank: int, column: int) -> set[str]:
        cell = self.cells.get((rank, column))
        return {product.writes for product in cell.products} if cell else set()

    def _collectives(self, column: int) -> list[Collective]:
        """Collectives of a column, each once."""
        return list(
            dict.fromkeys(
                collective
                for rank in range(self.ranks)
                if (cell := self.cells.get((rank, column)))
                for collective in cell.collectives
            )
        )

    def _edges(self) -> list[float]:
        """Left edge of every column, then the right edge of the grid."""
        x, edges, stage = float(_LEFT), [], float(_LEFT)
        for column in range(self.columns):
            if column and self.stages[column] != self.stages[column - 1]:
                stage = x = max(x, stage + _HEADING)
            edges.append(x)
            hops = any(hop.target.column == column + 1 for hop in (*self.hops, *self.stays))
            parked = any(place.column == column + 1 for place in self.parked)
            x += _BAR + 2 * _PAD + (_GUTTER if hops else _END) + (_BAR + 8 if parked else 0)
            x += _RAIL * len(self.collectives[column])
        return [*edges, max(x, stage + _HEADING)]

    def y(self, place: Place) -> float:
        """Middle of a bar; of one that is parked, in the slot of its tensor."""
        blocks = self.bars.get((place.rank, place.column), ())
        slot = blocks.index(place.block) if place.block in blocks else _slot(place.block)
        top = _TOP + place.rank * (self.cell_height + _ROW_GAP) + _PAD
        return top + min(slot, self.slots - 1) * (_HIGH + _SPACE) + _HIGH / 2

    def x(self, place: Place) -> float:
        """Left edge of a bar."""
        return self.edges[place.column] + (-_BAR - 8 if place in self.parked else _PAD)


def _slot(block: str) -> int:
    parsed = parse_block(block)
    return _SLOTS[parsed.tensor.removeprefix("d")] if parsed else len(_SLOTS)


def _blocks(cell: Cell) -> tuple[str, ...]:
    """Blocks that a cell shows: those of its products, and those it sends besides."""
    used = [block for product in cell.products for block in (*product.reads, product.writes)]
    if not used:
        used = [message.block for message in cell.messages if message.leaves]
    return tuple(sorted(dict.fromkeys(used), key=_slot))


def _shades(blocks: set[str]) -> dict[str, str]:
    """Block -> colour: the hue of its tensor, a lightness of its own."""
    by_slot: dict[int, set[str]] = {}
    for block in blocks:
        by_slot.setdefault(_slot(block), set()).add(block.removeprefix("d"))
    return {
        block: _shade(slot, sorted(names).index(block.removeprefix("d")), len(names))
        for slot, names in by_slot.items()
        for block in blocks
        if block.removeprefix("d") in names and _slot(block) == slot
    }


def _shade(slot: int, place: int, count: int) -> str:
    part = place / (count - 1) if count > 1 else 0.5
    hue, light = _HUES[slot]
    red, green, blue = hls_to_rgb((hue - 18 + 36 * part) % 360 / 360, light + 0.11 * part, 0.56)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def grid_svg(grid: SpaceTime) -> str:
    """Return the picture of a grid, legible on light and on dark pages."""
    layout = _Layout(grid)
    bottom = _TOP + layout.ranks * (layout.cell_height + _ROW_GAP)
    body = [
        svg.text(grid.title, 4, 16, font_weight=600),
        *(mark for column in range(layout.columns) for mark in _heading(grid, layout, column)),
        *(mark for rank in range(layout.ranks) for mark in _device(grid, layout, rank)),
        *(_line(layout, hop) for hop in layout.stays),
        *(mark for hop in layout.hops for mark in _curve(layout, hop)),
        *(mark for place in sorted(layout.parked) for mark in _bar(layout, place, "")),
        *(mark for place in sorted(layout.cells) for mark in _cell(layout, *place)),
        *(mark for column in range(layout.columns) for mark in _rails(layout, column)),
        *_legend(bottom + 14),
    ]
    return svg.picture(max(layout.edges[-1], 640.0), bottom + 28, body, grid.title)


def _heading(grid: SpaceTime, layout: _Layout, column: int) -> Iterator[str]:
    cell = head(grid.cells[column])
    left = layout.edges[column]
    middle = left + _BAR / 2 + _PAD
    yield svg.text(f"step {cell.step}", middle, _TOP - 8, text_anchor="middle", font_size=11)
    if column == 0 or head(grid.cells[column - 1]).phase != cell.phase:
        yield svg.text(cell.phase or "messages", left, _TOP - 42, font_weight=600)
        yield svg.text(equation(cell), left, _TOP - 26, font_family=svg.MONO, font_size=10)


def _device(grid: SpaceTime, layout: _Layout, rank: int) -> Iterator[str]:
    middle = _TOP + rank * (layout.cell_height + _ROW_GAP) + layout.cell_height / 2
    place = grid.devices[rank]
    yield svg.text(f"device {rank}", 4, middle - (2 if place else -4), font_weight=600)
    if place:
        yield svg.text(place, 4, middle + 13, font_family=svg.MONO, font_size=10)


def _cell(layout: _Layout, rank: int, column: int) -> Iterator[str]:
    cell = layout.cells[rank, column]
    yield svg.element(
        "rect",
        svg.title(f"device {rank}, {cell.phase} step {cell.step}: " + "; ".join(cell_lines(cell))),
        x=layout.edges[column],
        y=float(_TOP + rank * (layout.cell_height + _ROW_GAP)),
        width=_BAR + 2 * _PAD,
        height=layout.cell_height,
        rx=6,
        fill=svg.GREY,
        fill_opacity=0.13,
    )
    written = {product.writes for product in cell.products}
    for block in layout.bars[rank, column]:
        yield from _bar(layout, Place(column, rank, block), "sum" if block in written else "read")


def _bar(layout: _Layout, place: Place, use: str) -> Iterator[str]:
    """A bar: filled if read, outlined if summed into, dashed if it only arrives here."""
    colour, x, y = layout.shades[place.block], layout.x(place), layout.y(place)
    dashed = {} if use else {"stroke_dasharray": "3 2"}
    yield svg.element("rect", x=x + 1, y=y - _HIGH / 2 + 1, width=_BAR - 2, height=_HIGH - 2, rx=4,
                      fill=colour if use == "read" else "none", stroke=colour, stroke_width=1.6,
                      **dashed)  # fmt: skip
    name = place.block.replace("[", " ").replace("]", "")
    yield svg.text(
        name if len(name) <= 9 else name[:8] + "\N{HORIZONTAL ELLIPSIS}",
        x + _BAR / 2,
        y + 3.5,
        text_anchor="middle",
        font_family=svg.MONO,
        font_size=10,
        font_weight=600,
        fill="#ffffff" if use == "read" else colour,
    )


def _line(layout: _Layout, stay: Hop) -> str:
    y = layout.y(stay.source)
    return svg.element("line", x1=layout.x(stay.source) + _BAR, y1=y, x2=layout.x(stay.target),
                       y2=y, stroke=layout.shades[stay.source.block], stroke_width=1.6,
                       stroke_opacity=0.45)  # fmt: skip


def _curve(layout: _Layout, hop: Hop) -> Iterator[str]:
    x, y = layout.x(hop.source) + _BAR, layout.y(hop.source)
    to_x, to_y = layout.x(hop.target), layout.y(hop.target)
    colour, bend = layout.shades[hop.target.block], (to_x - x) * 0.55
    said = f"{hop.target.block} from device {hop.source.rank} to device {hop.target.rank}"
    yield svg.element(
        "path",
        svg.title(said),
        d=f"M{x:.1f} {y:.1f}C{x + bend:.1f} {y:.1f} {to_x - bend - 4:.1f} {to_y:.1f} "
        f"{to_x - 5:.1f} {to_y:.1f}",
        fill="none",
        stroke=colour,
        stroke_width=1.8,
    )
    yield svg.element("path", d=f"M{to_x:.1f} {to_y:.1f}l-7 -3.6v7.2z", fill=colour)


def _rails(layout: _Layout, column: int) -> Iterator[str]:
    """Collectives: a rail for each, with a dot at every member."""
    for number, collective in enumerate(layout.collectives[column]):
        x = layout.edges[column] + _BAR + 2 * _PAD + _RAIL * (number + 0.8)
        colour = layout.shades.get(collective.block, svg.GREY)
        marks = [layout.y(Place(column, rank, collective.block)) for rank in collective.group]
        yield svg.element(
            "path",
            svg.title(collective.text),
            d=f"M{x:.1f} {min(marks):.1f}V{max(marks):.1f}"
            + "".join(f"M{layout.edges[column] + _BAR + _PAD:.1f} {y:.1f}H{x:.1f}" for y in marks),
            fill="none",
            stroke=colour,
            stroke_width=1.6,
        )
        yield from (svg.element("circle", cx=x, cy=y, r=3.5, fill=colour) for y in marks)


def _legend(y: float) -> Iterator[str]:
    pieces: tuple[tuple[Sequence[str], str], ...] = (
        ((_box(4, y, svg.GREY),), "read"),
        ((_box(72, y, "none"),), "summed into"),
        ((_stroke(f"M186 {y}h24", 0.45),), "stays"),
        ((_stroke(f"M262 {y + 5}c12 0 10 -10 22 -10", 1),), "hops while the products run"),
        ((_stroke(f"M474 {y}h16", 1), svg.element("circle", cx=492, cy=y, r=3.5, fill=svg.GREY)),
         "collective"),
    )  # fmt: skip
    for (marks, said), x in zip(pieces, (34, 102, 216, 292, 502), strict=True):
        yield from marks
        yield svg.text(said, x, y + 4, font_size=11)


def _box(x: float, y: float, fill: str) -> str:
    return svg.element("rect", x=x, y=y - 6, width=24, height=12, rx=3, fill=fill,
                       stroke=svg.GREY, stroke_width=1.6)  # fmt: skip


def _stroke(path: str, opacity: float) -> str:
    return svg.element("path", d=path, fill="none", stroke=svg.GREY, stroke_width=1.8,
                       stroke_opacity=opacity)  # fmt: skip
