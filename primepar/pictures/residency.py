"""Where the chunks of a rank are, instruction by instruction: on the device, or in host memory.

A row is a chunk and a column an instruction. A chunk is drawn from the first of its blocks to the
last. Marks between two colours are its transfers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from primepar.pictures import svg
from primepar.schedule.program import Evict, Fetch, Free, Program
from primepar.schedule.program_uses import frees, host_blocks, initial_blocks, writes

ROW, COLUMN, LABEL, TOP = 16.0, 3.0, 96.0, 34.0
DEVICE, HOST = svg.under_white(0.6), "#c9ced6"


class Stay(NamedTuple):
    """A chunk in one memory, from an instruction up to another; a transfer begins it, or not."""

    chunk: str
    first: int
    end: int
    on_device: bool
    moved: bool


def stays(program: Program, rank: int, chunks: Mapping[str, str]) -> list[Stay]:
    """Return where the chunks of a rank are; frees and transfers take no column."""
    ended: list[Stay] = []
    begun: dict[str, tuple[int, bool, bool]] = {}
    """Chunk -> since when it is where, and whether a transfer moved it there."""
    for moment, places, moved in _places(program, rank, chunks):
        for chunk in {*begun, *places}:
            before, now = begun.get(chunk), places.get(chunk)
            if before is not None and before[1] == now:
                continue
            if before is not None:
                ended.append(Stay(chunk, before[0], moment, before[1], before[2]))
                del begun[chunk]
            if now is not None:
                begun[chunk] = moment, now, chunk in moved
    end = _moments(program, rank)
    ended += [Stay(chunk, first, end, *rest) for chunk, (first, *rest) in begun.items()]
    return sorted(stay for stay in ended if stay.end > stay.first or stay.end == end)


def _moments(program: Program, rank: int) -> int:
    return 1 + sum(not isinstance(node, Fetch | Evict | Free) for node in program.programs[rank])


def _places(
    program: Program, rank: int, chunks: Mapping[str, str]
) -> Iterator[tuple[int, dict[str, bool], set[str]]]:
    """Yield after every instruction the memory of each chunk, and those that just moved."""
    device = {name for name in initial_blocks(program)[rank] if name in chunks}
    host = {name for name in host_blocks(program)[rank] if name in chunks}
    moved, moment = set[str](), 0
    yield 0, _memory(device, host, chunks), set()
    for node in program.programs[rank]:
        if isinstance(node, Evict):
            host.add(node.block)
        if isinstance(node, Fetch):
            host.discard(node.block)
        device.difference_update(frees(node))
        device.update(name for name in writes(node, rank) if name in chunks)
        if isinstance(node, Fetch | Evict):
            moved.add(chunks.get(node.block, node.block))
        elif not isinstance(node, Free):
            moment += 1
            yield moment, _memory(device, host, chunks), moved
            moved = set()
    yield moment + 1, _memory(device, host, chunks), moved


def _memory(device: set[str], host: set[str], chunks: Mapping[str, str]) -> dict[str, bool]:
    return {chunks[name]: False for name in host} | {chunks[name]: True for name in device}


def residency_svg(program: Program, rank: int, chunks: Mapping[str, str]) -> str:
    """Draw where each chunk of a rank is over the instructions of its list."""
    known = stays(program, rank, chunks)
    rows = {
        chunk: row for row, chunk in enumerate(sorted({stay.chunk for stay in known}, key=_order))
    }
    width, height = LABEL + COLUMN * _moments(program, rank), TOP + ROW * len(rows)
    body = [*_legend(), *(svg.text(chunk, LABEL - 8, TOP + ROW * (row + 0.7), text_anchor="end",
                                   font_size=10) for chunk, row in rows.items())]  # fmt: skip
    body += [_bar(stay, rows[stay.chunk]) for stay in known]
    body += [_mark(stay, rows[stay.chunk]) for stay in known if stay.moved]
    label = f"Chunks of rank {rank} on the device and in host memory, over {len(known)} stays"
    return svg.picture(width + 12, height + 12, body, label)


def _order(chunk: str) -> tuple[str, int]:
    kind, _, number = chunk.rpartition(" ")
    return kind, int(number)


def _bar(stay: Stay, row: int) -> str:
    words = f"{stay.chunk}: {'device' if stay.on_device else 'host'}, {stay.first} to {stay.end}"
    return svg.element(
        "rect", svg.title(words),
        x=LABEL + COLUMN * stay.first, y=TOP + ROW * row + 2, height=ROW - 4,
        width=COLUMN * max(1, stay.end - stay.first), fill=DEVICE if stay.on_device else HOST,
    )  # fmt: skip


def _mark(stay: Stay, row: int) -> str:
    """A line where a transfer ends: a fetch before the device's colour, else an eviction."""
    x, y = LABEL + COLUMN * stay.first, TOP + ROW * row
    return svg.element("path", d=f"M{x:.1f} {y:.1f}v{ROW:.1f}", stroke=svg.RED, stroke_width=1.2)


def _legend() -> Iterator[str]:
    for x, colour, words in (
        (LABEL, DEVICE, "on the device"),
        (LABEL + 120, HOST, "in host memory"),
    ):
        yield svg.element("rect", x=x, y=8.0, width=12, height=12, fill=colour)
        yield svg.text(words, x + 18, 18.0)
    yield svg.element("path", d=f"M{LABEL + 246:.1f} 8v12", stroke=svg.RED, stroke_width=1.2)
    yield svg.text("transfer", LABEL + 254, 18.0)
