"""Grouped bars of two or more series, in panels, to compare printed with computed numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from primepar.pictures import svg

BAR, GAP, HEIGHT = 11.0, 9.0, 150.0
LEFT, TOP, BELOW, BETWEEN = 34.0, 44.0, 34.0, 26.0
COLOURS = ("#9aa4b2", "#3f51b5", "#d9c2a3", "#e07b00")
"""Colours of the series, legible on white and on dark pages."""


class BarPanel(NamedTuple):
    """Groups of bars under a title: the label of each, and a value or None for each series."""

    title: str
    groups: tuple[tuple[str, tuple[float | None, ...]], ...]


def bars(
    panels: Sequence[BarPanel], series: Sequence[str], columns: int, top: float, label: str
) -> str:
    """An SVG of panels in rows of `columns`, bars from 0 to `top`, with a line at 1."""
    width = max(_width(panel, len(series)) for panel in panels) + LEFT
    rows = -(-len(panels) // columns)
    height = TOP + HEIGHT + BELOW
    body = list(_legend(series))
    for number, panel in enumerate(panels):
        x, y = number % columns * (width + BETWEEN), 24 + number // columns * height
        body.append(svg.element("g", *_panel(panel, top), transform=f"translate({x:g},{y:g})"))
    return svg.picture(columns * (width + BETWEEN), 24 + rows * height, body, label)


def _width(panel: BarPanel, series: int) -> float:
    return len(panel.groups) * (series * BAR + GAP)


def _legend(series: Sequence[str]) -> Iterator[str]:
    x = LEFT
    for name, colour in zip(series, COLOURS, strict=False):
        yield svg.element("rect", x=x, y=4.0, width=12, height=12, fill=colour)
        yield svg.text(name, x + 17, 14.0)
        x += 40 + 7 * len(name)


def _panel(panel: BarPanel, top: float) -> Iterator[str]:
    """Marks at the left, the bars with their values as tooltips, and the labels below."""
    floor = TOP + HEIGHT
    series = len(panel.groups[0][1])
    right = LEFT + _width(panel, series)
    yield svg.text(panel.title, LEFT, TOP - 14, font_weight="bold")
    for mark in _marks(top):
        y = floor - mark / top * HEIGHT
        dashes = {} if mark in (0, 1) else {"stroke_dasharray": "2 4"}
        yield svg.element("line", x1=LEFT, x2=right, y1=y, y2=y, stroke=svg.GREY,
                          stroke_width=0.6, **dashes)  # fmt: skip
        yield svg.text(f"{mark:g}", LEFT - 6, y + 4, text_anchor="end", font_size=10)
    for number, (name, values) in enumerate(panel.groups):
        x = LEFT + GAP / 2 + number * (series * BAR + GAP)
        for place, value in enumerate(values):
            if value is not None:
                height = value / top * HEIGHT
                yield svg.element("rect", svg.title(f"{panel.title}, {name}: {value:.2f}"),
                                  x=x + place * BAR, y=floor - height, width=BAR - 1, height=height,
                                  fill=COLOURS[place])  # fmt: skip
        yield svg.text(name, x + series * BAR / 2, floor + 15, text_anchor="middle", font_size=10)


def _marks(top: float) -> list[float]:
    step = 0.5 if top > 1.25 else 0.25
    return [number * step for number in range(int(top / step) + 1)]
