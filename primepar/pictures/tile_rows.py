"""What each worker of a Stream-K schedule computes: a row per worker, a bar per part of a tile.

A filled bar is a part of a tile that the worker owns. An outlined bar is a partial sum that the
worker posts for the owner. A dot at the end of a bar is one partial sum that the owner adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from primepar.errors import MethodError
from primepar.partition.stream_k import StreamK
from primepar.partition.work_ranges import TilePart, WorkSplit
from primepar.pictures import svg
from primepar.schedule.events import Event
from primepar.schedule.program_method import ProgramMethod

WIDTH, LEFT, ROW, BAR, HEAD, GAP = 760.0, 78.0, 24.0, 20.0, 28.0, 18.0
GOLDEN_ANGLE = 0.381966
"""Of a whole turn: neighbours among any number of tiles differ in hue."""
DOT = 7.0
"""Distance between dots."""
MOST_WORKERS = 64


def tile_rows_svg(splits: Sequence[WorkSplit]) -> str:
    """Return one panel for each split, all on one scale of iterations.

    Raises `MethodError` for more workers than have room.
    """
    most = max(split.workers for split in splits)
    if most > MOST_WORKERS:
        raise MethodError(
            f"stream-k: expected at most {MOST_WORKERS} workers in a picture, got {most}: "
            f"write workers={MOST_WORKERS}"
        )
    unit = (WIDTH - LEFT - 12) / max(split.longest for split in splits)
    body: list[str] = []
    top = 4.0
    for split in splits:
        body += _panel(split, top, unit)
        top += HEAD + ROW * split.workers + GAP
    names = ", ".join(dict.fromkeys(split.variant for split in splits))
    return svg.picture(WIDTH, top, body, f"Tiles of the workers under {names}")


def method_picture(method: ProgramMethod, events: Sequence[Event]) -> str:
    """Return the rows of one method; its timeline is not needed."""
    assert isinstance(method, StreamK)
    return tile_rows_svg([method.split])


def _panel(split: WorkSplit, top: float, unit: float) -> Iterator[str]:
    useful = split.tiles * split.iterations
    percent = 100 * useful / (split.workers * split.longest)
    caption = (
        f"{split.variant}: {split.tiles} tiles of {split.iterations} iterations on "
        f"{split.workers} workers, {split.longest} on the busiest, {percent:.1f} % utilised"
    )
    yield svg.text(caption, LEFT, top + 14, font_weight=600)
    for worker, parts in enumerate(split.parts):
        y = top + HEAD + ROW * worker
        yield svg.text(f"worker {worker}", LEFT - 10, y + 14, text_anchor="end")
        done = 0
        for part in parts:
            length = part.stop - part.start
            x = LEFT + done * unit
            yield from _bar(x, y, length * unit, part, worker)
            done += length
    right, bottom = LEFT + split.longest * unit, top + HEAD + ROW * split.workers
    yield svg.element("line", x1=right, y1=top + HEAD - 4, x2=right, y2=bottom, stroke=svg.GREY,
                      stroke_dasharray="3 3")  # fmt: skip


def _bar(x: float, y: float, width: float, part: TilePart, worker: int) -> Iterator[str]:
    colour, owned = svg.under_white(part.tile * GOLDEN_ANGLE), part.owner == worker
    tooltip = f"tile {part.tile}" if owned else f"tile {part.tile}, for worker {part.owner}"
    yield svg.element(
        "rect", svg.title(tooltip), x=x + 1, y=y + 1, width=max(width - 2, 0.5), height=BAR - 2,
        rx=2, fill=colour if owned else "none", stroke=colour, stroke_width=1.5,
    )  # fmt: skip
    label = str(part.tile)
    if width >= 9 * len(label) + 4:
        fill = svg.WHITE if owned else svg.GREY
        yield svg.text(label, x + width / 2, y + 14, text_anchor="middle", font_size=11, fill=fill)
    for number in range(len(part.senders)):
        if (number + 1) * DOT < width / 2 - 5:
            yield svg.element("circle", cx=x + width - (number + 1) * DOT, cy=y + BAR / 2, r=2.5,
                              fill=svg.WHITE)  # fmt: skip
