"""What is drawn of the events of a method that a timeline of all instructions does not show best.

A pipeline is drawn by its actions, Stream-K by the tiles of each worker, and local SGD by steps and
averages. Each has a *reading*: which bar an event belongs to, or none. Bars of one name that follow
one another directly are one bar; with four iterations of a tile, for example, the tile is drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from primepar.pictures import svg
from primepar.pictures.timeline import Bar, Panel, Row, draw
from primepar.schedule.effects import effects, frees, host_blocks, initial_blocks
from primepar.schedule.events import Event
from primepar.schedule.program import Evict, Fetch, Free, Program


class Shape(NamedTuple):
    """How an event is drawn."""

    name: str
    """What the bar is, for its tooltip."""
    colour: str
    label: str = ""
    meaning: str = ""
    """That of the colour, for the legend."""
    filled: bool = True


Shapes = Callable[[Event], Shape | None]
"""How each event of a run is drawn, if it is."""


PHASES = {"forward": (0.60, 0.74), "backward": (0.06, -0.06), "gradient": (0.40, 0.26)}
"""Last word of a phase of a pipeline -> the hues of the first and the last chunk of a stage."""
LETTERS = {"forward": "F", "backward": "B", "gradient": "W"}


def actions(events: Sequence[Event]) -> Shapes:
    """Of a pipeline: the products of a layer, labelled by the micro-batch."""
    layers: dict[int, set[int]] = {}
    for event in events:
        layer, _, phase = event.phase.rpartition(".")
        if event.op == "compute" and phase in PHASES:
            layers.setdefault(event.rank, set()).add(int(layer.removeprefix("layer")))
    chunks = max(map(len, layers.values()))

    def shape(event: Event) -> Shape | None:
        layer, _, phase = event.phase.rpartition(".")
        if event.op != "compute" or phase not in PHASES:
            return None
        chunk = sorted(layers[event.rank]).index(int(layer.removeprefix("layer")))
        first, last = PHASES[phase]
        hue = first + (last - first) * chunk / max(chunks - 1, 1)
        batch = event.sub_operator["M"]
        name = f"stage {event.rank}: {LETTERS[phase]}({batch})"
        name += f" of chunk {chunk}" if chunks > 1 else ""
        meaning = f"{LETTERS[phase]} {phase}" if chunk == 0 else f"{LETTERS[phase]} chunk {chunk}"
        return Shape(name, svg.under_white(hue), str(batch), meaning)

    return shape


def tiles(events: Sequence[Event]) -> Shapes:
    """Of Stream-K: tiles in colours of their own, outlined where a partial sum is made."""
    columns = 1 + max(event.sub_operator.get("K", 0) for event in events)
    owners = {(event.rank, event.block): event.peer for event in events if event.op == "isend"}
    added = Counter((event.rank, event.block)
                    for event in events if event.op == "compute" and not event.phase)  # fmt: skip

    def shape(event: Event) -> Shape | None:
        if event.op != "compute" or not event.phase:
            return None
        tile = event.sub_operator["M"] * columns + event.sub_operator["K"]
        colour = svg.under_white(tile * 0.381966)  # the golden angle: neighbours differ in hue
        owner = owners.get((event.rank, event.block))
        if owner is not None:
            return Shape(f"tile {tile}, for worker {owner}", colour, str(tile), filled=False)
        sums = added[event.rank, event.block]
        label = f"{tile} +{sums}" if sums else str(tile)
        return Shape(f"tile {tile}, with {sums} sums added", colour, label)

    return shape


STEP, MODELS, GRADIENTS = svg.under_white(0.58), svg.under_white(0.05), svg.under_white(0.33)


def periods(events: Sequence[Event]) -> Shapes:
    """Of local SGD: the steps of a worker, and the averages in which all workers meet."""

    def shape(event: Event) -> Shape | None:
        block, _, rest = event.block.partition(".")
        if event.op == "all_reduce" or event.phase.endswith(".average"):
            number = int(rest.partition("[")[0])
            if block == "mean":
                return Shape(f"gradients averaged in step {number + 1}", GRADIENTS,
                             meaning="average of the gradients")  # fmt: skip
            return Shape(f"models averaged after step {number}", MODELS,
                         meaning="average of the models")  # fmt: skip
        if event.op != "compute":
            return None
        step = int(event.phase.partition(".")[0]) + 1
        name = f"worker {event.rank}, step {step}"
        return Shape(name, STEP, str(step), "step of a worker")

    return shape


_PIPELINE = ("stage", actions)
READINGS: Mapping[str, tuple[str, Callable[[Sequence[Event]], Shapes]]] = {
    "gpipe": _PIPELINE,
    "1f1b": _PIPELINE,
    "interleaved-1f1b": _PIPELINE,
    "zb-h1": _PIPELINE,
    "zbv": _PIPELINE,
    "stream-k": ("worker", tiles),
    "local-sgd": ("worker", periods),
}
"""Name of a method -> what a rank is called in it, and how the events of a run are drawn."""


def method_svg(name: str, runs: Mapping[str, Sequence[Event]]) -> str:
    """Return the SVG of some runs of a method of `READINGS`, by title, one below another."""
    panels, legend = [], dict[str, str]()
    rank_name, shapes = READINGS[name]
    for title, events in runs.items():
        bars = list(_bars(events, shapes(events), legend))
        ranks, end = 1 + max(event.rank for event in events), max(event.end for event in events)
        busy = sum(event.end - event.start for event in events if event.track == "compute")
        rows = [Row(f"{rank_name} {rank}") for rank in range(ranks)]
        title += f": {end:g} units of time, {busy / ranks / end:.1%} busy"
        panels.append(Panel(title, rows, bars))
    return draw(panels, legend, f"{name}: {', '.join(runs)}", widest=60.0, narrowest=7.0)


def _bars(events: Sequence[Event], shape: Shapes, legend: dict[str, str]) -> Iterator[Bar]:
    """Yield the bars of a run, and note what their colours mean."""
    bar: Bar | None = None
    for event in sorted(events, key=lambda event: (event.rank, event.start)):
        drawn = shape(event)
        if drawn is None:
            continue
        if drawn.meaning:
            legend.setdefault(drawn.meaning, drawn.colour)
        if bar and (bar.row, bar.end, bar.tooltip) == (event.rank, event.start, drawn.name):
            bar = bar._replace(end=event.end)
            continue
        if bar:
            yield bar
        bar = Bar(event.rank, event.start, event.end, drawn.colour, drawn.name, drawn.label,
                  drawn.filled)  # fmt: skip
    if bar:
        yield bar


# Where the chunks of a rank are, instruction by instruction: on the device, or in host memory
#
# A row is a chunk and a column an instruction. A chunk is drawn from the first of its blocks to the
# last; a transfer, which takes no column, is a line between two colours.

MEMORIES = {"on the device": svg.under_white(0.6), "in host memory": "#c9ced6", "transfer": svg.RED}


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
    # From top to bottom as they are first used: rows then read as the step does.
    first = {stay.chunk: stay.first for stay in reversed(known) if stay.on_device}
    names = sorted(
        {stay.chunk for stay in known}, key=lambda name: (first.get(name, 0), _in_order(name))
    )
    bars, transfers = [], []
    for stay in known:
        row, where = names.index(stay.chunk), "on the device"
        where = where if stay.on_device else "in host memory"
        bars.append(Bar(row, stay.first, stay.end, MEMORIES[where], f"{stay.chunk} {where}"))
        if stay.moved:
            transfers.append(Bar(row, stay.first, stay.first, MEMORIES["transfer"], "transfer"))
    title = f"Rank {rank}: its chunks over its instructions"
    rows = [Row(name, high=12, gap=4) for name in names]
    return draw([Panel(title, rows, bars + transfers)], MEMORIES, title, widest=8.0, narrowest=3.0)


def _in_order(chunk: str) -> tuple[str, int]:
    kind, _, number = chunk.rpartition(" ")
    return kind, int(number)
