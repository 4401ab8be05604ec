"""The space-time grid as SVG: a row for each device, a column for each step, a bar for each block.

A bar is filled if its block is read, outlined if it is summed into, and dashed if it only arrives
there. A line between bars is a block that stays, a curve one that hops while the products run, and
a rail with dots is a collective. A colour is a block, and its hue the tensor, so that the eye can
follow it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from primepar.pictures import svg
from primepar.pictures.space_time import (
    DEADLOCK,
    Cell,
    SpaceTime,
    Standstill,
    cell_lines,
    column_name,
    equation,
    head,
)
from primepar.schedule.operators import parse_block

_SLOTS = {"I": 0, "W": 1, "O": 2}
"""Tensor -> its slot in a cell, also of its gradient; other blocks come below."""
_HUES = (214, 24, 156, 288)
BAR, HIGH, SPACE, PAD = 60, 17, 3, 6
"""Width and height of a bar, the space below it, and the padding of a cell."""
GUTTER, END, RAIL, ROW_GAP, TOP, WAITS = 50, 20, 10, 12, 78, 70
"""Room for hops, for none, for a rail, between devices, above them, and for who waits for whom."""


class BlockBar(NamedTuple):
    """A bar: the block that a rank uses in a column, or that arrives before it."""

    column: int
    rank: int
    block: str


class HopArrow(NamedTuple):
    """A block on its way from one bar to another."""

    source: BlockBar
    target: BlockBar


def grid_svg(grid: SpaceTime) -> str:
    """Return the picture of a grid, legible on light and on dark pages."""
    layout = _Layout(grid)
    bottom = layout.top(layout.ranks)
    body = [svg.text(grid.title, 4, 16, font_weight=600)]
    for column in range(layout.columns):
        body += _heading(layout, column)
    for rank, place in enumerate(grid.places):
        middle = layout.middle(rank)
        body.append(svg.text(f"device {rank}", 4, middle - (2 if place else -4), font_weight=600))
        body += [svg.mono(place, 4, middle + 13)] * bool(place)
    body += _ways(layout)
    for parked in sorted(layout.parked):
        body += _bar(layout, parked, "")
    for (rank, column), cell in sorted(layout.cells.items(), key=lambda item: item[0]):
        if cell.standstill is None:
            body += _cell(layout, rank, column, cell)
    for column in range(layout.columns):
        body += _rails(layout, column)
    for rank, standstill in layout.standing.items():
        body += _standstill(layout, rank, standstill)
    body += _legend(layout, bottom + 14)
    bottom += 28
    axes = {tuple(device) for device in grid.devices}
    if len(axes) == 1 and len(*axes) == 2:
        mesh = _mesh(grid.devices, bottom + 12)
        body, bottom = body + mesh.marks, mesh.bottom
    return svg.picture(max(layout.edges[-1], 640.0), bottom, body, grid.title)


class _Layout:
    """What is drawn and where, in pixels; computed once."""

    def __init__(self, grid: SpaceTime) -> None:
        self.grid = grid
        self.cells = {(cell.rank, column): cell for column, cells in enumerate(grid.cells)
                      for cell in cells if cell is not None}  # fmt: skip
        self.ranks, self.columns = len(grid.devices), len(grid.cells)
        self.bars = {place: _blocks(cell) for place, cell in self.cells.items()}
        self.hops = list(self._hops())
        arriving = {hop.target for hop in self.hops}
        self.parked = {place for place in arriving if not self.has_bar(place)}
        self.stays = [
            HopArrow(BlockBar(column, rank, block), after)
            for (rank, column), blocks in self.bars.items()
            for block in blocks
            if self.has_bar(after := BlockBar(column + 1, rank, block)) and after not in arriving
        ]
        self.rails = [
            tuple(dict.fromkeys(one for cell in cells if cell for one in cell.collectives))
            for cells in grid.cells
        ]
        """Column -> its collectives, each once."""
        self.shades = _shades({place.block for hop in self.hops for place in hop}.union(
            *self.bars.values()))  # fmt: skip
        self.standing = {cell.rank: cell.standstill for cell in self.cells.values()
                         if cell.standstill}  # fmt: skip
        lines = [line for standstill in self.standing.values() for line in standstill.lines]
        self.standing_width = 2 * PAD + svg.MONO_WIDTH * 10 * max(map(len, lines), default=0)
        self.slots = max([3 if self.standing else 1, *map(len, self.bars.values())])
        self.cell_height = self.slots * (HIGH + SPACE) - SPACE + 2 * PAD
        self.edges = self._edges()

    def has_bar(self, place: BlockBar) -> bool:
        """Whether the cell of `place` shows its block."""
        return place.block in self.bars.get((place.rank, place.column), ())

    def _hops(self) -> Iterator[HopArrow]:
        """Yield the hops of all messages; a partial sum is the one that the column before left."""
        landings: dict[tuple[int, int], deque[str]] = {}
        """(source, target) -> what the target calls the blocks of their messages, in order."""
        for (rank, _), cell in self.cells.items():
            for message in cell.messages:
                if not message.leaves:
                    landings.setdefault((message.peer, rank), deque()).append(message.block)
        for (rank, column), cell in self.cells.items():
            for message in cell.messages:
                arrivals = landings.get((rank, message.peer))
                if not message.leaves or not arrivals:
                    continue  # In a program that hangs a message may never be received.
                landing = arrivals.popleft()
                partial = BlockBar(column, message.peer, landing)
                before = BlockBar(column - 1, rank, message.block)
                receiver = self.cells.get((message.peer, column))
                summed = receiver and landing in {one.writes for one in receiver.products}
                made_here = message.block in {one.writes for one in cell.products}
                if summed and not made_here and self.has_bar(partial) and self.has_bar(before):
                    yield HopArrow(before, partial)
                else:
                    source = BlockBar(column, rank, message.block)
                    yield HopArrow(source, BlockBar(column + 1, message.peer, landing))

    def _edges(self) -> list[float]:
        """Left edge of every column, then the right edge of the grid."""
        grid = self.grid
        x = stage = max(78.0, 14 + 6 * max(map(len, grid.places), default=0))
        heading = 24 + 6 * max((len(equation(head(cells))) for cells in grid.cells), default=0)
        edges: list[float] = []
        for column, cells in enumerate(grid.cells):
            phase = head(cells).phase
            if column and phase != head(grid.cells[column - 1]).phase:
                stage = x = max(x, stage + heading)
            edges.append(x)
            if phase == DEADLOCK:
                x += self.standing_width + WAITS
                continue
            hops = any(hop.target.column == column + 1 for hop in (*self.hops, *self.stays))
            parked = any(place.column == column + 1 for place in self.parked)
            x += BAR + 2 * PAD + (GUTTER if hops else END) + (BAR + 8 if parked else 0)
            x += RAIL * len(self.rails[column])
        return [*edges, max(x, stage + heading)]

    def top(self, rank: int) -> float:
        """Top of the row of a device."""
        return TOP + rank * (self.cell_height + ROW_GAP)

    def middle(self, rank: int) -> float:
        """Middle of the row of a device."""
        return self.top(rank) + self.cell_height / 2

    def y(self, place: BlockBar) -> float:
        """Middle of a bar; of one that is parked, in the slot of its tensor."""
        blocks = self.bars.get((place.rank, place.column), ())
        slot = blocks.index(place.block) if place.block in blocks else _slot(place.block)
        return self.top(place.rank) + PAD + min(slot, self.slots - 1) * (HIGH + SPACE) + HIGH / 2

    def x(self, place: BlockBar) -> float:
        """Left edge of a bar."""
        return self.edges[place.column] + (-BAR - 8 if place in self.parked else PAD)


def _heading(layout: _Layout, column: int) -> Iterator[str]:
    columns, left = layout.grid.cells, layout.edges[column]
    cell, name = head(columns[column]), column_name(columns[column])
    if cell.standstill is not None:
        yield svg.text(f"{cell.phase}: {name}", left, TOP - 8, font_weight=600, fill=svg.RED)
        return
    yield svg.text(name, left + BAR / 2 + PAD, TOP - 8, text_anchor="middle", font_size=11)
    if column == 0 or head(columns[column - 1]).phase != cell.phase:
        yield svg.text(cell.phase or "messages", left, TOP - 42, font_weight=600)
        yield svg.mono(equation(cell), left, TOP - 26)


def _ways(layout: _Layout) -> Iterator[str]:
    """Lines of the blocks that stay, and curves of those that hop."""
    for source, target in layout.stays:
        y = layout.y(source)
        yield svg.element(
            "line", x1=layout.x(source) + BAR, y1=y, x2=layout.x(target), y2=y, stroke_width=1.6,
            stroke=layout.shades[source.block], stroke_opacity=0.45,
        )  # fmt: skip
    for source, target in layout.hops:
        yield from svg.arrow(
            (layout.x(source) + BAR, layout.y(source)), (layout.x(target), layout.y(target)),
            layout.shades[source.block],
            f"{source.block} from device {source.rank} to device {target.rank}",
        )  # fmt: skip


def _cell(layout: _Layout, rank: int, column: int, cell: Cell) -> Iterator[str]:
    when = f"{cell.phase} {column_name([cell])}".strip()
    yield svg.element(
        "rect", svg.title(f"device {rank}, {when}: " + "; ".join(cell_lines(cell))),
        x=layout.edges[column], y=layout.top(rank), width=BAR + 2 * PAD, height=layout.cell_height,
        rx=6, fill=svg.GREY, fill_opacity=0.13,
    )  # fmt: skip
    written = {one.writes for one in cell.products}
    for block in layout.bars[rank, column]:
        use = "sum" if block in written else "read"
        yield from _bar(layout, BlockBar(column, rank, block), use)


def _bar(layout: _Layout, place: BlockBar, use: str) -> Iterator[str]:
    colour, x, y = layout.shades[place.block], layout.x(place), layout.y(place)
    yield svg.element("rect", x=x + 1, y=y - HIGH / 2 + 1, width=BAR - 2, height=HIGH - 2, rx=4,
                      fill=colour if use == "read" else "none", stroke=colour, stroke_width=1.6,
                      **({} if use else {"stroke_dasharray": "3 2"}))  # fmt: skip
    name = place.block.replace("[", " ").replace("]", "")
    name = name if len(name) <= 9 else name[:8] + "\N{HORIZONTAL ELLIPSIS}"
    yield svg.mono(name, x + BAR / 2, y + 3.5, text_anchor="middle", font_weight=600,
                   fill=svg.WHITE if use == "read" else svg.GREY)  # fmt: skip


def _rails(layout: _Layout, column: int) -> Iterator[str]:
    """A rail for each collective, with a dot at every member."""
    right = layout.edges[column] + BAR + PAD
    for number, collective in enumerate(layout.rails[column]):
        x = right + PAD + RAIL * (number + 0.8)
        colour = layout.shades.get(collective.block, svg.GREY)
        marks = [layout.y(BlockBar(column, rank, collective.block)) for rank in collective.group]
        path = f"M{x:.1f} {min(marks):.1f}V{max(marks):.1f}"
        path += "".join(f"M{right:.1f} {y:.1f}H{x:.1f}" for y in marks)
        yield svg.element("path", svg.title(collective.text), d=path, fill="none", stroke=colour,
                          stroke_width=1.6)  # fmt: skip
        yield from (svg.element("circle", cx=x, cy=y, r=3.5, fill=colour) for y in marks)


def _standstill(layout: _Layout, rank: int, standstill: Standstill) -> Iterator[str]:
    """A rank that hangs, in red, with arrows to those that it waits for; or one at its end."""
    lines, left, width = standstill.lines, layout.edges[layout.columns - 1], layout.standing_width
    colour = svg.RED if len(lines) > 1 else svg.GREY
    yield svg.element(
        "rect", svg.title(f"device {rank}: " + "; ".join(lines)), x=left, y=layout.top(rank),
        width=width, height=layout.cell_height, rx=6, fill=colour, fill_opacity=0.08,
        stroke=colour, stroke_width=1.6,
    )  # fmt: skip
    first = layout.middle(rank) - 7 * (len(lines) - 1) + 3
    for number, line in enumerate(lines):
        yield svg.mono(line, left + PAD, first + 14 * number, fill=colour)
    for other in standstill.awaits:
        yield from svg.arrow(
            (left + width, layout.middle(rank) - 5), (left + width, layout.middle(other) + 5),
            svg.RED, f"device {rank} waits for device {other}", points="left",
            bend=min(WAITS - 14, 24 + 14 * abs(other - rank)),
        )  # fmt: skip


def _mesh(devices: tuple[dict[str, int], ...], y: float) -> svg.Drawn:
    """Which device is where on a mesh of two axes."""
    rows, columns = devices[0]
    rank_at = {(place[rows], place[columns]): rank for rank, place in enumerate(devices)}
    high, wide = (1 + max(indices) for indices in zip(*rank_at, strict=True))
    cells = [[rank_at[row, column] for column in range(wide)] for row in range(high)]
    names = (
        [f"{rows}={row}" for row in range(high)],
        [f"{columns}={column}" for column in range(wide)],
    )
    drawn = svg.table(*names, cells, (), 4, y + 12)
    heading = svg.text(f"mesh of {len(devices)} devices", 4, y + 4, font_size=11)
    return drawn._replace(marks=[heading, *drawn.marks])


def _legend(layout: _Layout, y: float) -> Iterator[str]:
    """What the marks mean, of those that are in the picture."""

    def box(x: float, fill: str) -> str:
        return svg.element("rect", x=x, y=y - 6, width=24, height=12, rx=3, fill=fill,
                           stroke=svg.GREY, stroke_width=1.6)  # fmt: skip

    def stroke(path: str, opacity: float = 1) -> str:
        return svg.element("path", d=path, fill="none", stroke=svg.GREY, stroke_width=1.8,
                           stroke_opacity=opacity)  # fmt: skip

    def rail(x: float) -> str:
        dot = svg.element("circle", cx=x + 20, cy=y, r=3.5, fill=svg.GREY)
        return stroke(f"M{x} {y}h16") + dot

    products = any(cell.products for cell in layout.cells.values())
    marks = (
        (products, lambda x: box(x, svg.GREY), "read"),
        (products, lambda x: box(x, "none"), "summed into"),
        (layout.stays, lambda x: stroke(f"M{x} {y}h24", 0.45), "stays"),
        (layout.hops, lambda x: stroke(f"M{x} {y + 5}c12 0 10 -10 24 -10"),
         "hops while the products run"),
        (any(layout.rails), rail, "collective"),
    )  # fmt: skip
    x = 4.0
    for is_drawn, mark, meaning in marks:
        if is_drawn:
            yield mark(x)
            yield svg.text(meaning, x + 30, y + 4, font_size=11)
            x += 48 + 6.2 * len(meaning)


def _slot(block: str) -> int:
    parsed = parse_block(block)
    return _SLOTS[parsed.tensor.removeprefix("d")] if parsed else len(_SLOTS)


def _blocks(cell: Cell) -> tuple[str, ...]:
    """Blocks that a cell shows: those of its products, and those it sends besides."""
    used = [block for one in cell.products for block in (*one.reads, one.writes)]
    if not used:
        used = [message.block for message in cell.messages if message.leaves]
    return tuple(sorted(dict.fromkeys(used), key=_slot))


def _shades(blocks: set[str]) -> dict[str, str]:
    """Block -> colour: the hue of its tensor, and a shade of its own that its gradient has too."""
    by_slot: dict[int, set[str]] = {}
    for block in blocks:
        by_slot.setdefault(_slot(block), set()).add(block.removeprefix("d"))
    shades = {}
    for block in blocks:
        names = sorted(by_slot[_slot(block)])
        part = names.index(block.removeprefix("d")) / (len(names) - 1) if len(names) > 1 else 0.5
        shades[block] = svg.under_white((_HUES[_slot(block)] - 22 + 44 * part) / 360)
    return shades
