"""SVG by string building: the few elements that the pictures need, and their colours.

A picture has a background of its own and follows the reader's colour scheme: colours are written as
they are on a light page, and a style replaces those of `DARK` on a dark one. So a text has the same
contrast wherever the picture is shown.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from colorsys import hls_to_rgb
from html import escape, unescape
from typing import Final, NamedTuple

PAPER: Final = "#ffffff"
GREY: Final = "#59636e"
"""Text and rules."""
RED: Final = "#b3202c"
"""What is wrong."""
WHITE: Final = "#fefefe"
"""Text on a block that is filled with a colour, in both schemes."""
DARK: Final = {PAPER: "#16191f", GREY: "#a7b1bd", RED: "#ff9492"}
"""Colour on a light page -> colour on a dark one; all others are the same on both."""
SANS = "ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, 'DejaVu Sans Mono', monospace"
MONO_WIDTH, SANS_WIDTH, BOLD_WIDTH = 0.61, 0.6, 0.68
"""Width of a character by its font size: no less than the widest usual fonts need on average."""
MARGIN = 8.0
SATURATION, CONTRAST = 0.62, 4.6
"""Of `under_white`; WCAG 2 asks for a contrast of 4.5."""
_TEXT = re.compile(r"<text ([^>]*)>([^<]*)</text>")
_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')


Point = tuple[float, float]
CELL = 30.0
"""Side of a cell of a table."""
_HEADS = {
    "right": (1, 0, "l-7 -3.6v7.2z"),
    "down": (0, 1, "l-3.6 -7h7.2z"),
    "left": (-1, 0, "l7 -3.6v7.2z"),
}
"""Where an arrow points -> its direction across and down, and the outline of its head."""


class Drawn(NamedTuple):
    """Elements, and the right and the bottom end of what they fill."""

    marks: list[str]
    right: float
    bottom: float


def element(name: str, *children: str, **attributes: object) -> str:
    """Return one element; `_` in an attribute stands for `-`, and floats keep two decimals."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
    )
    return f"<{name}{written}>{''.join(children)}</{name}>" if children else f"<{name}{written}/>"


def _attribute(value: object) -> str:
    return escape(_text(value), quote=False).replace('"', "&quot;")


def text(content: str, x: float, y: float, **attributes: object) -> str:
    """Return a text element, grey unless a `fill` is given."""
    return element("text", escape(content, quote=False), x=x, y=y, **{"fill": GREY, **attributes})


def title(content: str) -> str:
    """Return the tooltip of the element that it is a child of."""
    return element("title", escape(content, quote=False))


def mono(content: str, x: float, y: float, **attributes: object) -> str:
    """Return a small text in which all characters have one width."""
    return text(content, x, y, **{"font_family": MONO, "font_size": 10, **attributes})


def arrow(
    start: Point, end: Point, colour: str, tooltip: str, points: str = "right",
    bend: float | None = None, dashed: bool = False,
) -> Iterator[str]:  # fmt: skip
    """Yield a curve and its head, which points `right`, `down` or back to the `left`.

    It leaves to the right, or down under a head that points down; `bend` is how far it goes on
    straight at either end, by default about half the way.
    """
    (x, y), (to_x, to_y) = start, end
    across, down, outline = _HEADS[points]
    reach = bend if bend is not None else 0.55 * (down * (to_y - y) or to_x - x)
    tip_x, tip_y = to_x - 5 * across, to_y - 5 * down
    yield element(
        "path", title(tooltip), fill="none", stroke=colour, stroke_width=1.7,
        d=f"M{x:.1f} {y:.1f}C{x + abs(across) * reach:.1f} {y + down * reach:.1f} "
        f"{tip_x - across * reach:.1f} {tip_y - down * reach:.1f} {tip_x:.1f} {tip_y:.1f}",
        **({"stroke_dasharray": "4 3"} if dashed else {}),
    )  # fmt: skip
    yield element("path", d=f"M{to_x:.1f} {to_y:.1f}{outline}", fill=colour)


def table(
    rows: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[object]],
    wrong: Container[Point], x: float, y: float,
) -> Drawn:  # fmt: skip
    """Draw small numbers in named rows and columns, those at `wrong` (row, column) in red."""
    left, top = x + 18 + 6.1 * max(map(len, rows), default=0), y + 14
    marks = [mono(name, left + CELL * (column + 0.5), y + 8, text_anchor="middle")
             for column, name in enumerate(columns)]  # fmt: skip
    for row, (name, contents) in enumerate(zip(rows, cells, strict=True)):
        middle = top + CELL * (row + 0.5) + 4
        marks.append(mono(name, left - 8, middle, text_anchor="end"))
        for column, content in enumerate(contents):
            colour = RED if (row, column) in wrong else GREY
            marks.append(element(
                "rect", x=left + CELL * column + 1, y=top + CELL * row + 1, width=CELL - 2,
                height=CELL - 2, rx=5, fill=colour, fill_opacity=0.13, stroke=colour,
                stroke_width=2 if colour == RED else 0.7,
            ))  # fmt: skip
            marks.append(mono(str(content), left + CELL * (column + 0.5), middle, fill=colour,
                              text_anchor="middle", font_size=11, font_weight=600))  # fmt: skip
    return Drawn(marks, left + CELL * len(columns), top + CELL * len(rows) + 10)


def picture(width: float, height: float, body: Iterable[str], label: str) -> str:
    """Return the whole file; `label` is what a screen reader reads aloud.

    It is widened where a text would be clipped.
    """
    inside = "\n".join(body)
    left, right = 0.0, width
    for attributes, content in _TEXT.findall(inside):
        given = dict(_ATTRIBUTE.findall(attributes))
        per_size = BOLD_WIDTH if given.get("font-weight") else SANS_WIDTH
        if "font-family" in given:
            per_size = MONO_WIDTH
        wide = len(unescape(content)) * per_size * float(given.get("font-size", 12))
        part = {"middle": 0.5, "end": 1.0}.get(given.get("text-anchor", ""), 0.0)
        start = float(given["x"]) - part * wide
        left, right = min(left, start - MARGIN), max(right, start + wide + MARGIN)
    paper = element("path", d=f"M{left:.1f} 0H{right:.1f}V{height:.1f}H{left:.1f}z", fill=PAPER)
    return element(
        "svg",
        f"\n{_style()}\n{paper}\n{inside}\n",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"{_text(left)} 0 {_text(right - left)} {_text(height)}",
        width=right - left,
        height=height,
        font_family=SANS,
        font_size=12,
        role="img",
        aria_label=label,
    ) + "\n"  # fmt: skip


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, `#rrggbb`, as WCAG 2 defines it: from 1 to 21."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def under_white(hue: float) -> str:
    """The lightest colour of a hue (of a whole turn) on which white text is legible."""
    colours = (_coloured(hue, percent / 100) for percent in range(60, 0, -1))
    return next(colour for colour in colours if contrast(colour, WHITE) >= CONTRAST)


def _coloured(hue: float, light: float) -> str:
    parts = hls_to_rgb(hue % 1, light, SATURATION)
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _style() -> str:
    rules = "".join(
        f'[{of}="{light}"]{{{of}:{dark}}}'
        for light, dark in DARK.items()
        for of in ("fill", "stroke")
    )
    return f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"


def _text(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
