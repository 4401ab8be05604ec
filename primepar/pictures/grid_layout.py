"""Positions of everything in the picture of a space-time grid: bars, hops, columns and colours."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from primepar.pictures import svg
from primepar.pictures.space_time import DEADLOCK, Cell, Collective, SpaceTime, equation, head
from primepar.schedule.operators import parse_block

_SLOTS = {"I": 0, "W": 1, "O": 2}
_HUES = (214, 24, 156, 288)
BAR, HIGH, SPACE, PAD = 60, 17, 3, 6
GUTTER, END, RAIL = 50, 20, 10
TOP, ROW_GAP, WAITS = 78, 12, 70


class BlockBar(NamedTuple):
    """A bar: the block that a rank uses in a column, or that arrives before it."""

    column: int
    rank: int
    block: str


class HopArrow(NamedTuple):
    """A block on its way from one bar to another."""

    source: BlockBar
    target: BlockBar


class Picture:
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
        self._landings = _landings(grid)
        self.hops = [
            hop for (_, column), cell in self.cells.items() for hop in self._hops(column, cell)
        ]
        arriving = {hop.target for hop in self.hops}
        self.parked = {place for place in arriving if not self.has_bar(place)}
        self.stays = [
            HopArrow(BlockBar(column, rank, block), after)
            for (rank, column), blocks in self.bars.items()
            for block in blocks
            if self.has_bar(after := BlockBar(column + 1, rank, block)) and after not in arriving
        ]
        self.stages = [head(cells).phase for cells in grid.cells]
        self.collectives = [self._collectives(column) for column in range(self.columns)]
        self.shades = _shades({place.block for hop in self.hops for place in hop}.union(
            *self.bars.values()))  # fmt: skip
        self.standing = {
            cell.rank: cell.standstill for cell in self.cells.values() if cell.standstill
        }
        widest = max(
            (len(line) for stop in self.standing.values() for line in stop.lines), default=0
        )
        self.standing_width = 2 * PAD + svg.MONO_WIDTH * 10 * widest
        self.slots = max([3 if self.standing else 1, *map(len, self.bars.values())])
        self.cell_height = self.slots * (HIGH + SPACE) - SPACE + 2 * PAD
        self.left = max(78.0, 14 + 6 * max(map(len, grid.devices), default=0))
        self.heading = 24 + 6 * max((len(equation(head(cells))) for cells in grid.cells), default=0)
        self.edges = self._edges()

    def has_bar(self, place: BlockBar) -> bool:
        """Whether the cell of `place` shows its block."""
        return place.block in self.bars.get((place.rank, place.column), ())

    def _hops(self, column: int, cell: Cell) -> Iterator[HopArrow]:
        """Hops that leave a cell; a partial sum is the one that the column before has left."""
        written = {product.writes for product in cell.products}
        for message in cell.messages:
            if message.leaves:
                landings = self._landings.get((cell.rank, message.peer))
                if not landings:
                    continue  # The program hangs: nobody receives this message.
                landing = landings.popleft()
                partial = BlockBar(column, message.peer, landing)
                before = BlockBar(column - 1, cell.rank, message.block)
                if self.has_bar(partial) and self.has_bar(before) and (
                    message.block not in written
                    and landing in self._written(message.peer, column)
                ):  # fmt: skip
                    yield HopArrow(before, partial)
                else:
                    source = BlockBar(column, cell.rank, message.block)
                    yield HopArrow(source, BlockBar(column + 1, message.peer, landing))

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
        x, edges, stage = self.left, [], self.left
        for column in range(self.columns):
            if column and self.stages[column] != self.stages[column - 1]:
                stage = x = max(x, stage + self.heading)
            edges.append(x)
            if self.stages[column] == DEADLOCK:
                x += self.standing_width + WAITS
                continue
            hops = any(hop.target.column == column + 1 for hop in (*self.hops, *self.stays))
            parked = any(place.column == column + 1 for place in self.parked)
            x += BAR + 2 * PAD + (GUTTER if hops else END) + (BAR + 8 if parked else 0)
            x += RAIL * len(self.collectives[column])
        return [*edges, max(x, stage + self.heading)]

    def y(self, place: BlockBar) -> float:
        """Middle of a bar; of one that is parked, in the slot of its tensor."""
        blocks = self.bars.get((place.rank, place.column), ())
        slot = blocks.index(place.block) if place.block in blocks else _slot(place.block)
        top = TOP + place.rank * (self.cell_height + ROW_GAP) + PAD
        return top + min(slot, self.slots - 1) * (HIGH + SPACE) + HIGH / 2

    def x(self, place: BlockBar) -> float:
        """Left edge of a bar."""
        return self.edges[place.column] + (-BAR - 8 if place in self.parked else PAD)


def _landings(grid: SpaceTime) -> dict[tuple[int, int], deque[str]]:
    """(source, target) -> what the target calls the blocks of their messages, in order."""
    landings: dict[tuple[int, int], deque[str]] = {}
    for cells in grid.cells:
        for cell in filter(None, cells):
            for message in cell.messages:
                if not message.leaves:
                    ends = message.peer, cell.rank
                    landings.setdefault(ends, deque()).append(message.block)
    return landings


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
    return svg.under_white((_HUES[slot] - 22 + 44 * part) / 360)
