"""Points on two logarithmic scales, with a line of slope one for comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from primepar.pictures import svg

WIDTH, HEIGHT = 640.0, 400.0
LEFT, RIGHT, TOP, BOTTOM = 76.0, 612.0, 34.0, 330.0
COLOURS = ("#2f81f7", "#d1242f", "#8250df", "#1a7f37")


@dataclass(frozen=True)
class Measurement:
    """One measurement; `at_least` where it was cut off."""

    x: float
    y: float
    tooltip: str
    at_least: bool = False


@dataclass(frozen=True)
class Scale:
    """Whole decades from `low` to `high`, drawn from `start` to `end` in the picture."""

    low: int
    high: int
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> Scale:
        """The decades that hold all values."""
        low, high = floor(log10(min(values))), ceil(log10(max(values)))
        return cls(low, max(high, low + 1), start, end)

    def position(self, value: float) -> float:
        """Position of a value in the picture."""
        part = (log10(value) - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    @property
    def decades(self) -> list[int]:
        """Exponents of the decades."""
        return list(range(self.low, self.high + 1))


def log_log_svg(
    title: str, labels: tuple[str, str], series: dict[str, list[Measurement]], linear: Measurement
) -> str:
    """Return the picture of some series; the dashed line has slope one and goes through `linear`.

    `labels` name the two scales. A measurement that was cut off is an open mark with an arrow.
    """
    points = [point for some in series.values() for point in some]
    x = Scale.over([point.x for point in points], LEFT, RIGHT)
    y = Scale.over([point.y for point in points], BOTTOM, TOP)
    body = [svg.text(title, 4, 16, font_weight=600), *_grid(x, y, labels), *_slope(x, y, linear)]
    for place, (name, some) in enumerate(series.items()):
        colour = COLOURS[place % len(COLOURS)]
        body += [mark for point in some for mark in _mark(x, y, point, colour)]
        body += _key(LEFT + 180 * place, name, colour)
    body += _key(LEFT + 180 * len(series), "in proportion", None)
    return svg.picture(WIDTH, HEIGHT, body, title)


def _grid(x: Scale, y: Scale, labels: tuple[str, str]) -> Iterator[str]:
    rule = {"stroke": svg.GREY, "stroke_opacity": 0.25}
    for exponent in x.decades:
        line = x.position(10**exponent)
        yield svg.element("line", x1=line, y1=TOP, x2=line, y2=BOTTOM, **rule)
        yield svg.text(_power(exponent), line, BOTTOM + 16, text_anchor="middle", font_size=11)
    for exponent in y.decades:
        line = y.position(10**exponent)
        yield svg.element("line", x1=LEFT, y1=line, x2=RIGHT, y2=line, **rule)
        yield svg.text(_power(exponent), LEFT - 8, line + 4, text_anchor="end", font_size=11)
    yield svg.text(labels[0], (LEFT + RIGHT) / 2, BOTTOM + 34, text_anchor="middle")
    middle = (TOP + BOTTOM) / 2
    yield svg.text(labels[1], 16, middle, text_anchor="middle",
                   transform=f"rotate(-90 16 {middle:g})")  # fmt: skip


def _power(exponent: int) -> str:
    return f"{10**exponent:,}" if exponent >= 0 else f"{10**exponent:.{-exponent}f}"


def _slope(x: Scale, y: Scale, through: Measurement) -> Iterator[str]:
    """The line of slope one, clipped to the scales."""
    shift = log10(through.y) - log10(through.x)
    first = max(x.low, y.low - shift)
    last = min(x.high, y.high - shift)
    yield svg.element(
        "line",
        x1=x.position(10**first),
        y1=y.position(10 ** (first + shift)),
        x2=x.position(10**last),
        y2=y.position(10 ** (last + shift)),
        stroke=svg.GREY,
        stroke_dasharray="5 4",
    )


def _mark(x: Scale, y: Scale, point: Measurement, colour: str) -> Iterator[str]:
    across, up = x.position(point.x), y.position(point.y)
    yield svg.element("circle", svg.title(point.tooltip), cx=across, cy=up, r=4.5, stroke=colour,
                      stroke_width=1.6, fill="none" if point.at_least else colour)  # fmt: skip
    if point.at_least:
        yield svg.element("path", d=f"M{across:.1f} {up - 5:.1f}v-13m-4 5l4 -5l4 5", fill="none",
                          stroke=colour, stroke_width=1.6)  # fmt: skip


def _key(left: float, name: str, colour: str | None) -> list[str]:
    y = BOTTOM + 56
    if colour is None:
        mark = svg.element("line", x1=left - 8, y1=y, x2=left + 12, y2=y, stroke=svg.GREY,
                           stroke_dasharray="5 4")  # fmt: skip
        return [mark, svg.text(name, left + 18, y + 4, font_size=11)]
    mark = svg.element("circle", cx=left, cy=y, r=4.5, fill=colour)
    return [mark, svg.text(name, left + 10, y + 4, font_size=11)]
