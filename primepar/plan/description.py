"""A plan as text: the layouts that every operator takes and leaves, and what moves between them.

Equal layouts have one letter. Each letter has a picture: its blocks, rows downward and columns to
the right, with the devices that hold them.

As SVG a plan has operators downward, and for each the layouts that it takes and leaves. A tile is a
layout. Each of its blocks names the devices that hold it, in the colour of the first of them. What
moves between two operators is printed in red.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import groupby, product
from math import prod
from string import ascii_uppercase
from textwrap import fill

from primepar.pictures import svg
from primepar.plan.layouts import edges, ends, padded_vocabulary
from primepar.plan.pipeline_layout import PipelineLayout, layer_of, layer_operator
from primepar.plan.plan import Plan, recomputed_words
from primepar.schedule.layout import Layout

MOST_CELLS = 16
"""A layout with more slices of a dim is described in words and not drawn."""


@dataclass(frozen=True)
class OperatorRow:
    """One operator, or the same one of several layers: letters of its layouts, elements moved.

    `before` is sent in forward to redistribute its inputs, `back` in backward for their gradients.
    The embedding takes no layout, as every device has the tokens; the loss leaves none.
    """

    name: str
    sequence: str
    takes: str
    leaves: str
    gradient: str
    before: int
    back: int


@dataclass
class Description:
    """What `show` prints of a plan, as text, a picture or JSON."""

    title: str
    layouts: dict[str, Layout] = field(default_factory=dict)
    rows: list[OperatorRow] = field(default_factory=list)
    tokens: int = 0
    moved: int = 0
    notes: list[str] = field(default_factory=list)

    def letter(self, layout: Layout) -> str:
        """The letter of a layout, a new one where it has none yet."""
        for letter, known in self.layouts.items():
            if known == layout:
                return letter
        turn, place = divmod(len(self.layouts), len(ascii_uppercase))
        letter = ascii_uppercase[place] + (str(turn) if turn else "")
        self.layouts[letter] = layout
        return letter


def describe(plan: Plan) -> Description:
    """Describe a plan; elements are for its batch, or for the smallest batch that fits."""
    batch = plan.batch or plan.row_cuts.smallest_batch(plan.model.context)
    description = Description(_title(plan), tokens=batch * plan.model.context)
    moved: dict[str, list[int]] = {operator.name: [0, 0] for operator in plan.operators}
    for edge in edges(plan):
        for way, elements in enumerate(edge.elements(description.tokens)):
            moved[edge.consumer][way] += elements
    rows = [_row(description, plan, name, *moved[name]) for name in moved]
    description.rows, description.moved = _folded(rows), sum(map(sum, moved.values()))
    description.notes = list(_notes(plan, batch, description))
    return description


def _title(plan: Plan) -> str:
    model, devices = plan.model, _count(plan.ranks, "device")
    layers = _count(model.layers, "layer")
    return f"{model.family}, {layers} of hidden {model.hidden}, on {devices}"


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number:,} {noun}{plural * (number != 1)}"


def _row(description: Description, plan: Plan, name: str, before: int, back: int) -> OperatorRow:
    layouts, kind = ends(plan, name), plan.operator(name).kind
    takes, leaves, gradient = (
        "-" if kind == without else description.letter(layout)
        for layout, without in (
            (layouts.input, "embedding"),
            (layouts.output, "loss"),
            (layouts.input_gradient, "embedding"),
        )
    )
    return OperatorRow(name, str(plan.sequence(name)), takes, leaves, gradient, before, back)


def _folded(rows: Sequence[OperatorRow]) -> list[OperatorRow]:
    """Rows of consecutive layers that are equal, as one: `blocks.0-11.qkv`."""
    folded: list[OperatorRow] = []
    blocks = [(layer, [*inside]) for layer, inside in groupby(rows, lambda r: layer_of(r.name))]
    for same, several in groupby(blocks, key=lambda block: [_without_layer(r) for r in block[1]]):
        layers = [layer for layer, _ in several]
        name = f"blocks.{layers[0]}-{layers[-1]}" if len(layers) > 1 else f"blocks.{layers[0]}"
        folded += [
            replace(row, name=row.name if layers[0] is None else f"{name}.{row.name}")
            for row in same
        ]
    return folded


def _without_layer(row: OperatorRow) -> OperatorRow:
    is_outside = layer_of(row.name) is None
    return row if is_outside else replace(row, name=layer_operator(row.name))


def _notes(plan: Plan, batch: int, description: Description) -> Iterator[str]:
    whose = "the plan's batch" if plan.batch else "the smallest batch that the plan takes"
    yield (
        "moved: elements that all devices together send between the operators of one layer, for "
        f"{whose}, {_count(batch, 'sequence')} of {plan.model.context} tokens; "
        f"of all layers {description.moved:,}"
    )
    padded = padded_vocabulary(plan)
    if padded != plan.model.vocabulary:
        yield f"vocabulary: {plan.model.vocabulary}, padded to {padded}"
    if plan.pipeline is not None:
        yield from _pipeline_notes(plan, plan.pipeline, batch, description.tokens)
    if plan.sharded_optimizer:
        yield "optimizer: its states are in shards over the devices that have the same block"
    if plan.recompute is not None:
        named = {"full": "all of a layer", "selective": "outputs of norms and activations"}
        words = recomputed_words(plan.recompute)
        what = named.get(words, f"what {words} of a layer make")
        yield f"recompute: {what} in backward, from what is kept of it"
    if plan.model.tied:
        yield "head: its weight is the embedding's table, and what moves of that is counted there"


def _pipeline_notes(plan: Plan, pipeline: PipelineLayout, batch: int, tokens: int) -> Iterator[str]:
    size, within = batch // pipeline.micro_batches, plan.stage_ranks
    yield (
        f"pipeline: {pipeline.schedule}, {_count(pipeline.stages, 'stage')} of "
        f"{_count(within, 'device')}, {_count(pipeline.micro_batches, 'micro-batch', 'es')} of "
        f"{_count(size, 'sequence')}; layouts are those of stage 0"
        + (f", and device i of stage s is device {within} s + i" if pipeline.stages > 1 else "")
    )
    chunks = pipeline.chunk_operators(plan.operators, plan.model.layers)
    sent = 0
    for (stage, _), operators, after in zip(
        pipeline.stage_chunks, chunks, [*pipeline.stage_chunks[1:], None], strict=True
    ):
        yield f"stage {stage}: {operators[0].name} to {operators[-1].name}"
        if after is not None and after[0] != stage:
            layout = ends(plan, operators[-1].name).output
            copies = Fraction(sum(map(len, layout.held)), prod(layout.grid))
            sent += int(2 * copies * tokens * plan.model.hidden)
    if sent:
        shared = plan.model.tied and pipeline.stage_chunks[0][0] != pipeline.stage_chunks[-1][0]
        yield (
            f"between stages: {sent:,} elements that all devices send, with the gradients"
            + ", and without the table that the head shares" * shared
        )


def words(description: Description, width: int = 100) -> str:
    """The plan as text: a table of its operators, a picture of each layout, and notes."""
    heads = ("operator", "sequence", "takes", "leaves", "leaves dI", "moved before", "moved back")
    table = [heads, *(_cells(row) for row in description.rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [description.title, ""]
    for cells in table:
        padded = [cell.ljust(size) for cell, size in zip(cells[:5], widths, strict=False)]
        numbers = [cell.rjust(size) for cell, size in zip(cells[5:], widths[5:], strict=True)]
        lines.append("  ".join((*padded, *numbers)).rstrip())
    pictures = [picture(letter, layout) for letter, layout in description.layouts.items()]
    notes = [fill(note, width, subsequent_indent="  ") for note in description.notes]
    return "\n".join((*lines, "", *_side_by_side(pictures, width), *notes)) + "\n"


def _cells(row: OperatorRow) -> tuple[str, ...]:
    numbers = [f"{elements:,}" if elements else "0" for elements in (row.before, row.back)]
    return (row.name, row.sequence, row.takes, row.leaves, row.gradient, *numbers)


def picture(letter: str, layout: Layout) -> list[str]:
    """Lines that draw a layout: how it is cut, and which devices hold each block."""
    rows, columns = layout.grid
    lines = [f"{letter}  {cut_text(layout)}"]
    if max(layout.grid) > MOST_CELLS:
        return lines
    cells = [[holders(layout, row, column) for column in range(columns)] for row in range(rows)]
    width = max(len(cell) for line in cells for cell in line)
    return [*lines, *("   " + "  ".join(cell.ljust(width) for cell in line) for line in cells)]


def cut_text(layout: Layout) -> str:
    """How a layout is cut: `rows in 2, columns in 4`."""
    cuts = [
        f"{name} in {slices}"
        for name, slices in zip(("rows", "columns"), layout.grid, strict=True)
        if slices > 1
    ]
    return ", ".join(cuts) or ("whole" if layout.ranks == 1 else "whole on every device")


def holders(layout: Layout, row: int, column: int) -> str:
    """Devices that hold a block: `0,4`, `0-3`."""
    ranks = [rank for rank, blocks in enumerate(layout.held) if (row, column) in blocks]
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ",".join(map(str, ranks))


def _side_by_side(pictures: list[list[str]], width: int) -> Iterator[str]:
    """Pictures side by side, as many as fit into `width` columns, an empty line after each row."""
    while pictures:
        count, columns = 0, 0
        for drawing in pictures:
            columns += max(map(len, drawing)) + 4
            if count and columns - 4 > width:
                break
            count += 1
        row, pictures = pictures[:count], pictures[count:]
        sizes = [max(map(len, drawing)) + 4 for drawing in row]
        for line in range(max(map(len, row))):
            parts = [drawing[line] if line < len(drawing) else "" for drawing in row]
            cells = zip(parts, sizes, strict=True)
            yield "".join(part.ljust(size) for part, size in cells).rstrip()
        yield ""


CELL_HIGH, CELL_PAD, GAP, TOP = 15, 10, 14, 62
LEFT, TILES, TILE_GAP = 8, 250, 36
HEADS = ("takes", "leaves", "leaves dI")


def plan_svg(description: Description) -> str:
    """Return the picture of a plan, legible on light and on dark pages."""
    width = max(map(_width, description.layouts.values()))
    columns = [TILES + place * (width + TILE_GAP) for place in range(len(HEADS) + 1)]
    body = [svg.text(description.title, LEFT, 18, font_weight=600), *_heads(columns)]
    y = float(TOP)
    for row in description.rows:
        body += _drawn_row(description, row, columns, y)
        y += _height(description, row) + GAP
    for note in description.notes:
        body.append(svg.text(note, LEFT, y + 12, font_size=10))
        y += 16
    return svg.picture(max(columns[-1] + 200.0, 720.0), y + 12, body, description.title)


def _heads(columns: list[int]) -> Iterator[str]:
    names = ("operator", "sequence", *HEADS, "moved before, and back")
    places = (LEFT, 160, *columns)
    for name, x in zip(names, places, strict=True):
        yield svg.text(name, x, TOP - 14, font_size=11)


def _drawn_row(
    description: Description, row: OperatorRow, columns: list[int], y: float
) -> Iterator[str]:
    baseline = y + _height(description, row) / 2 + 4
    yield svg.text(row.name, LEFT, baseline, font_weight=600)
    yield svg.text(row.sequence, 160, baseline, font_family=svg.MONO)
    letters = (row.takes, row.leaves, row.gradient)
    for letter, x in zip(letters, columns, strict=False):
        layout = description.layouts.get(letter)
        yield from _tile(letter, layout, x, y) if layout else ()
    if row.before or row.back:
        moved = f"{row.before:,}, {row.back:,}"
        yield svg.text(moved, columns[-1], baseline, fill=svg.RED, font_family=svg.MONO)


def _tile(letter: str, layout: Layout, x: float, y: float) -> Iterator[str]:
    """A layout; only in words where it has too many blocks."""
    yield svg.text(letter, x - 14, y + 11, font_size=10)
    if max(layout.grid) > MOST_CELLS:
        yield svg.text(cut_text(layout), x, y + 11, font_size=10)
        return
    width = _cell_width(layout)
    for row, column in product(*map(range, layout.grid)):
        devices = holders(layout, row, column)
        left, top = x + column * width, y + row * CELL_HIGH
        first = int(devices.replace("-", ",").split(",")[0])
        yield svg.element(
            "rect", svg.title(f"{letter}: block ({row}, {column}) on device {devices}"),
            x=left + 0.5, y=top + 0.5, width=width - 1, height=CELL_HIGH - 1, rx=3,
            fill=svg.under_white(first / layout.ranks),
        )  # fmt: skip
        middle = left + width / 2
        yield svg.text(devices, middle, top + 11, fill=svg.WHITE, font_size=9, text_anchor="middle")


def _cell_width(layout: Layout) -> int:
    cells = (holders(layout, *block) for block in product(*map(range, layout.grid)))
    return CELL_PAD + 6 * max(map(len, cells))


def _width(layout: Layout) -> int:
    if max(layout.grid) > MOST_CELLS:
        return 6 * len(cut_text(layout))
    return layout.grid[1] * _cell_width(layout)


def _height(description: Description, row: OperatorRow) -> float:
    letters = (row.takes, row.leaves, row.gradient)
    grids = [
        description.layouts[letter].grid for letter in letters if letter in description.layouts
    ]
    return CELL_HIGH * max((rows for rows, _ in grids if rows <= MOST_CELLS), default=1)
