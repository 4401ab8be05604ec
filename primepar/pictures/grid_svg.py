"""The space-time grid as SVG: devices downward, steps to the right, blocks on their way between.

Every bar is a block in use: filled where it is read, outlined where it is summed into. A straight
line is a block that stays, a curve one that hops to another device while products run. Bars of
one tensor share a hue; each block has a shade of its own, so that the eye can follow it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from primepar.pictures import svg
from primepar.pictures.grid_layout import (
    BAR,
    HIGH,
    PAD,
    RAIL,
    ROW_GAP,
    TOP,
    BlockBar,
    HopArrow,
    Picture,
)
from primepar.pictures.grid_marks import mesh_marks, standstill_marks
from primepar.pictures.space_time import SpaceTime, cell_lines, column_name, equation, head


def grid_svg(grid: SpaceTime) -> str:
    """Return the picture of a grid, legible on light and on dark pages."""
    layout = Picture(grid)
    bottom = TOP + layout.ranks * (layout.cell_height + ROW_GAP)
    body = [
        svg.text(grid.title, 4, 16, font_weight=600),
        *(mark for column in range(layout.columns) for mark in _heading(grid, layout, column)),
        *(mark for rank in range(layout.ranks) for mark in _device(grid, layout, rank)),
        *(_line(layout, hop) for hop in layout.stays),
        *(mark for hop in layout.hops for mark in _curve(layout, hop)),
        *(mark for place in sorted(layout.parked) for mark in _bar(layout, place, "")),
        *(
            mark
            for place in sorted(layout.cells)
            for mark in _cell(layout, *place)
            if layout.cells[place].standstill is None
        ),
        *(mark for column in range(layout.columns) for mark in _rails(layout, column)),
        *(mark for rank in layout.standing for mark in standstill_marks(layout, rank)),
        *_legend(bottom + 14),
    ]
    mesh = mesh_marks(grid.devices, bottom + 40)
    body += mesh.marks
    return svg.picture(max(layout.edges[-1], 640.0), bottom + 28 + mesh.high, body, grid.title)


def _heading(grid: SpaceTime, layout: Picture, column: int) -> Iterator[str]:
    cell = head(grid.cells[column])
    left = layout.edges[column]
    middle = left + BAR / 2 + PAD
    name = column_name(grid.cells[column])
    if cell.standstill is not None:
        yield svg.text(f"{cell.phase}: {name}", left, TOP - 8, font_weight=600, fill=svg.RED)
        return
    yield svg.text(name, middle, TOP - 8, text_anchor="middle", font_size=11)
    if column == 0 or head(grid.cells[column - 1]).phase != cell.phase:
        yield svg.text(cell.phase or "messages", left, TOP - 42, font_weight=600)
        yield svg.text(equation(cell), left, TOP - 26, font_family=svg.MONO, font_size=10)


def _device(grid: SpaceTime, layout: Picture, rank: int) -> Iterator[str]:
    middle = TOP + rank * (layout.cell_height + ROW_GAP) + layout.cell_height / 2
    place = grid.devices[rank]
    yield svg.text(f"device {rank}", 4, middle - (2 if place else -4), font_weight=600)
    if place:
        yield svg.text(place, 4, middle + 13, font_family=svg.MONO, font_size=10)


def _cell(layout: Picture, rank: int, column: int) -> Iterator[str]:
    cell = layout.cells[rank, column]
    when = f"{cell.phase} {column_name([cell])}".strip()
    yield svg.element(
        "rect",
        svg.title(f"device {rank}, {when}: " + "; ".join(cell_lines(cell))),
        x=layout.edges[column],
        y=float(TOP + rank * (layout.cell_height + ROW_GAP)),
        width=BAR + 2 * PAD,
        height=layout.cell_height,
        rx=6,
        fill=svg.GREY,
        fill_opacity=0.13,
    )
    written = {product.writes for product in cell.products}
    for block in layout.bars[rank, column]:
        yield from _bar(
            layout, BlockBar(column, rank, block), "sum" if block in written else "read"
        )


def _bar(layout: Picture, place: BlockBar, use: str) -> Iterator[str]:
    """A bar: filled if read, outlined if summed into, dashed if it only arrives here."""
    colour, x, y = layout.shades[place.block], layout.x(place), layout.y(place)
    dashed = {} if use else {"stroke_dasharray": "3 2"}
    yield svg.element("rect", x=x + 1, y=y - HIGH / 2 + 1, width=BAR - 2, height=HIGH - 2, rx=4,
                      fill=colour if use == "read" else "none", stroke=colour, stroke_width=1.6,
                      **dashed)  # fmt: skip
    name = place.block.replace("[", " ").replace("]", "")
    yield svg.text(
        name if len(name) <= 9 else name[:8] + "\N{HORIZONTAL ELLIPSIS}",
        x + BAR / 2,
        y + 3.5,
        text_anchor="middle",
        font_family=svg.MONO,
        font_size=10,
        font_weight=600,
        fill=svg.WHITE if use == "read" else svg.GREY,
    )


def _line(layout: Picture, stay: HopArrow) -> str:
    y = layout.y(stay.source)
    return svg.element("line", x1=layout.x(stay.source) + BAR, y1=y, x2=layout.x(stay.target),
                       y2=y, stroke=layout.shades[stay.source.block], stroke_width=1.6,
                       stroke_opacity=0.45)  # fmt: skip


def _curve(layout: Picture, hop: HopArrow) -> Iterator[str]:
    x, y = layout.x(hop.source) + BAR, layout.y(hop.source)
    to_x, to_y = layout.x(hop.target), layout.y(hop.target)
    colour, bend = layout.shades[hop.source.block], (to_x - x) * 0.55
    label = f"{hop.source.block} from device {hop.source.rank} to device {hop.target.rank}"
    yield svg.element(
        "path",
        svg.title(label),
        d=f"M{x:.1f} {y:.1f}C{x + bend:.1f} {y:.1f} {to_x - bend - 4:.1f} {to_y:.1f} "
        f"{to_x - 5:.1f} {to_y:.1f}",
        fill="none",
        stroke=colour,
        stroke_width=1.8,
    )
    yield svg.element("path", d=f"M{to_x:.1f} {to_y:.1f}l-7 -3.6v7.2z", fill=colour)


def _rails(layout: Picture, column: int) -> Iterator[str]:
    """Collectives: a rail for each, with a dot at every member."""
    for number, collective in enumerate(layout.collectives[column]):
        x = layout.edges[column] + BAR + 2 * PAD + RAIL * (number + 0.8)
        colour = layout.shades.get(collective.block, svg.GREY)
        marks = [layout.y(BlockBar(column, rank, collective.block)) for rank in collective.group]
        yield svg.element(
            "path",
            svg.title(collective.text),
            d=f"M{x:.1f} {min(marks):.1f}V{max(marks):.1f}"
            + "".join(f"M{layout.edges[column] + BAR + PAD:.1f} {y:.1f}H{x:.1f}" for y in marks),
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
    for (marks, label), x in zip(pieces, (34, 102, 216, 292, 502), strict=True):
        yield from marks
        yield svg.text(label, x, y + 4, font_size=11)


def _box(x: float, y: float, fill: str) -> str:
    return svg.element("rect", x=x, y=y - 6, width=24, height=12, rx=3, fill=fill,
                       stroke=svg.GREY, stroke_width=1.6)  # fmt: skip


def _stroke(path: str, opacity: float) -> str:
    return svg.element("path", d=path, fill="none", stroke=svg.GREY, stroke_width=1.8,
                       stroke_opacity=opacity)  # fmt: skip
