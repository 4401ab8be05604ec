"""Where the chunks of a rank are, instruction by instruction: on the device, or in host memory.

A row is a chunk and a column an instruction. A chunk is drawn from the first of its blocks to the
last; a transfer, which takes no column, is a line between two colours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from primepar.pictures import svg
from primepar.pictures.timeline import Bar, Panel, Row, draw
from primepar.schedule.effects import effects, frees, host_blocks, initial_blocks
from primepar.schedule.program import Evict, Fetch, Free, Program

COLOURS = {"on the device": svg.under_white(0.6), "in host memory": "#c9ced6", "transfer": svg.RED}


class Stay(NamedTuple):
    """A chunk in one memory, from an instruction up to another; a transfer begins it, or not."""

    chunk: str
    first: int
    end: int
    on_device: bool
    moved: bool


def stays(program: Program, rank: int, chunks: Mapping[str, str]) -> list[Stay]:
    """Return where the chunks of a rank are; frees and transfers take no column."""
    device = {name for name in initial_blocks(program)[rank] if name in chunks}
    host = {name for name in host_blocks(program)[rank] if name in chunks}
    moved, moment, ended = set[str](), 0, list[Stay]()
    begun: dict[str, Stay] = {}
    """The stay of each chunk that is in some memory now, without its end."""

    def look() -> None:
        """End the stays that are over, and begin others."""
        memory = {chunks[name]: False for name in host} | {chunks[name]: True for name in device}
        for chunk in {*begun, *memory}:
            before, now = begun.get(chunk), memory.get(chunk)
            if before is not None and before.on_device is not now:
                ended.append(begun.pop(chunk)._replace(end=moment))
            if now is not None and chunk not in begun:
                begun[chunk] = Stay(chunk, moment, moment, now, chunk in moved)
        moved.clear()

    look()
    for node in program.programs[rank]:
        if isinstance(node, Evict):
            host.add(node.block)
        if isinstance(node, Fetch):
            host.discard(node.block)
        device.difference_update(frees(node))
        device.update(name for name in effects(node, rank).writes if name in chunks)
        if isinstance(node, Fetch | Evict):
            moved.add(chunks.get(node.block, node.block))
        elif not isinstance(node, Free):
            moment += 1
            look()
    moment += 1
    look()
    return sorted([stay for stay in ended if stay.end > stay.first]
                  + [stay._replace(end=moment) for stay in begun.values()])  # fmt: skip


def residency_svg(program: Program, rank: int, chunks: Mapping[str, str]) -> str:
    """Draw where each chunk of a rank is over the instructions of its list."""
    known = stays(program, rank, chunks)
    names = sorted({stay.chunk for stay in known}, key=_in_order)
    bars, transfers = [], []
    for stay in known:
        row, where = names.index(stay.chunk), "on the device"
        where = where if stay.on_device else "in host memory"
        bars.append(Bar(row, stay.first, stay.end, COLOURS[where], f"{stay.chunk} {where}"))
        if stay.moved:
            transfers.append(Bar(row, stay.first, stay.first, COLOURS["transfer"], "transfer"))
    title = f"Rank {rank}: its chunks over its instructions"
    rows = [Row(name, high=12, gap=4) for name in names]
    return draw([Panel(title, rows, bars + transfers)], COLOURS, title, widest=8.0, narrowest=3.0)


def _in_order(chunk: str) -> tuple[str, int]:
    kind, _, number = chunk.rpartition(" ")
    return kind, int(number)
