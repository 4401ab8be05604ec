"""The pictures and the table of lemmas of docs/stream-k.md.

    python docs/render_stream_k.py

writes docs/images/stream-k-*.svg and prints the table; a test compares both with what is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from formulas import with_formulas

from primepar.api.drawings import method_events
from primepar.partition.stream_k import StreamK
from primepar.partition.work_ranges import VARIANTS, Variant, WorkSplit
from primepar.pictures import svg
from primepar.pictures.methods import method_svg
from primepar.verify.every_size.stream_k import lemmas

IMAGES = Path(__file__).resolve().parent / "images"
LARGE_TILES, LARGE_ITERATIONS = 256, 64
"""A product of 2,048 x 2,048 x 2,048 in tiles of 128 x 128 x 32."""


def pictures() -> dict[str, str]:
    """Return the text of each picture by its file name."""
    runs = {variant: method_events(StreamK(variant=variant)) for variant in VARIANTS}
    return {
        "stream-k-tiles.svg": method_svg("stream-k", runs),
        "stream-k-utilisation.svg": utilisation_svg(LARGE_TILES, LARGE_ITERATIONS),
    }


def lemma_table() -> Iterator[str]:
    """Yield the lines of the table of lemmas."""
    yield "| property | lemma | for all integers |"
    yield "|---|---|---|"
    for lemma in lemmas():
        yield f"| {lemma.properties[0]} | {lemma.name} | {with_formulas(lemma.statement)} |"


# How well each variant uses a growing number of workers, counted from its parts

WIDTH, LEFT, RIGHT, TOP, PANEL, GAP = 760.0, 64.0, 744.0, 66.0, 130.0, 48.0
COLOURS: dict[Variant, str] = {
    "basic": "#2f81f7",
    "data-parallel": "#d1242f",
    "one-tile": "#1a7f37",
    "two-tile": "#8250df",
}

DASHES = {"one-tile": "3 4", "two-tile": "9 6"}
"""So that equal lines are seen through one another."""


class Usage(NamedTuple):
    """What one variant does with some workers."""

    useful: float
    """Share of the workers' time in iterations, in percent, until the busiest has finished."""
    partial: int
    """Partial tiles that are written and added."""
    together: int
    """Largest number of workers of one tile."""


PANELS = {
    "useful": "busy workers, % of the time",
    "partial": "partial tiles",
    "together": "workers of one tile, at most",
}
"""Field of `Usage` -> the title of its panel."""


def usage(split: WorkSplit) -> Usage:
    """Count the parts of all workers."""
    loads = [sum(part.stop - part.start for part in parts) for parts in split.parts]
    senders = [len(part.senders) for parts in split.parts for part in parts]
    useful = 100 * sum(loads) / (split.workers * max(loads))
    return Usage(useful, sum(senders), 1 + max(senders))


def utilisation_svg(tiles: int, iterations: int, most: int = 132) -> str:
    """Return three panels over 1 to `most` workers, for a product of some tiles."""
    lines: dict[Variant, list[Usage]] = {
        variant: [
            usage(WorkSplit(workers, tiles, iterations, variant)) for workers in range(1, most + 1)
        ]
        for variant in VARIANTS
    }
    title = f"{tiles} tiles of {iterations} iterations on 1 to {most} workers"
    body = [svg.text(title, LEFT, 16, font_weight=600), *_legend()]
    for number, (field, label) in enumerate(PANELS.items()):
        top = TOP + number * (PANEL + GAP)
        values = {variant: [getattr(use, field) for use in uses] for variant, uses in lines.items()}
        body += _panel(label, values, top)
    body.append(svg.text("workers", (LEFT + RIGHT) / 2, TOP + 3 * (PANEL + GAP) - 6,
                         text_anchor="middle"))  # fmt: skip
    return svg.picture(WIDTH, TOP + 3 * (PANEL + GAP) + 4, body, title)


def _legend() -> Iterator[str]:
    for number, (variant, colour) in enumerate(COLOURS.items()):
        x = LEFT + 120 * number
        dash = {"stroke_dasharray": DASHES[variant]} if variant in DASHES else {}
        yield svg.element("line", x1=x, y1=31, x2=x + 18, y2=31, stroke=colour, stroke_width=2.5,
                          **dash)  # fmt: skip
        yield svg.text(variant, x + 24, 35)


def _panel(label: str, values: Mapping[Variant, Sequence[float]], top: float) -> Iterator[str]:
    count = len(next(iter(values.values())))
    largest = max(map(max, values.values()))
    step = next(s for s in (1, 2, 5, 10, 20, 25, 50, 100, 200, 500, 1000) if largest / s <= 5)
    high = -(-largest // step) * step
    yield svg.text(label, LEFT, top - 6)
    for number in range(int(high / step) + 1):
        y = top + PANEL * (1 - number * step / high)
        yield svg.element("line", x1=LEFT, y1=y, x2=RIGHT, y2=y, stroke=svg.GREY,
                          stroke_opacity=0.25)  # fmt: skip
        yield svg.text(str(number * step), LEFT - 8, y + 4, text_anchor="end", font_size=11)
    for workers in (1, *range(12, count + 1, 12)):
        x = _across(workers, count)
        yield svg.text(str(workers), x, top + PANEL + 16, text_anchor="middle", font_size=11)
    for variant, series in values.items():
        points = " ".join(
            f"{_across(workers, count):.1f},{top + PANEL * (1 - value / high):.1f}"
            for workers, value in enumerate(series, 1)
        )
        dash = {"stroke_dasharray": DASHES[variant]} if variant in DASHES else {}
        yield svg.element("polyline", svg.title(variant), points=points, fill="none",
                          stroke=COLOURS[variant], stroke_width=1.8, **dash)  # fmt: skip


def _across(workers: int, count: int) -> float:
    return LEFT + (RIGHT - LEFT) * (workers - 1) / max(1, count - 1)


if __name__ == "__main__":
    for name, text in pictures().items():
        (IMAGES / name).write_text(text, encoding="utf-8")
    print("\n".join(lemma_table()))
