"""A plan in words: what every operator takes and leaves, and what moves between them.

Layouts that are the same go by one letter, and each letter has a picture: its blocks, rows downward
and columns to the right, with the devices that hold them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from string import ascii_uppercase
from textwrap import fill

from primepar.plan.layouts import edges, ends, padded_vocabulary
from primepar.plan.plan import Plan
from primepar.schedule.layout import Layout

MOST_CELLS = 16
"""A layout with more slices of a dim is told, but not drawn."""


@dataclass(frozen=True)
class OperatorRow:
    """One operator, or the same one of several layers: letters of its layouts, elements moved.

    `before` moves in forward to bring its inputs, `back` in backward to take their gradients back.
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
    """A plan for people, and for `--json`."""

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
    """Tell a plan; elements are for its batch, or for the smallest that it can take."""
    batch = plan.batch or plan.row_cuts.smallest_batch(plan.model.context)
    found = Description(_title(plan), tokens=batch * plan.model.context)
    moved: dict[str, list[int]] = {each.name: [0, 0] for each in plan.operators}
    for edge in edges(plan):
        for way, elements in enumerate(edge.elements(found.tokens)):
            moved[edge.consumer][way] += elements
    rows = [_row(found, plan, name, *moved[name]) for name in moved]
    found.rows, found.moved = _folded(rows), sum(map(sum, moved.values()))
    found.notes = list(_notes(plan, batch, found))
    return found


def _title(plan: Plan) -> str:
    model, devices = plan.model, _count(plan.ranks, "device")
    layers = _count(model.layers, "layer")
    return f"{model.family}, {layers} of hidden {model.hidden}, on {devices}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _row(found: Description, plan: Plan, name: str, before: int, back: int) -> OperatorRow:
    own, kind = ends(plan, name), plan.operator(name).kind
    takes, leaves, gradient = (
        "-" if kind == without else found.letter(each)
        for each, without in (
            (own.input, "embedding"),
            (own.output, "loss"),
            (own.input_gradient, "embedding"),
        )
    )
    return OperatorRow(name, str(plan.sequence(name)), takes, leaves, gradient, before, back)


def _folded(rows: Sequence[OperatorRow]) -> list[OperatorRow]:
    """Rows of consecutive layers that say the same, as one: `blocks.0-11.qkv`."""
    folded: list[OperatorRow] = []
    blocks = [(key, list(own)) for key, own in groupby(rows, key=_layer)]
    for same, several in groupby(blocks, key=lambda block: [_without_layer(r) for r in block[1]]):
        layers = [layer for layer, _ in several]
        name = f"blocks.{layers[0]}-{layers[-1]}" if len(layers) > 1 else f"blocks.{layers[0]}"
        folded += [
            replace(row, name=f"{name}.{row.name}" if layers[0] else row.name) for row in same
        ]
    return folded


def _layer(row: OperatorRow) -> str:
    """Number of the layer that a row is of; empty for one of none."""
    parts = row.name.split(".")
    return parts[1] if parts[0] == "blocks" else ""


def _without_layer(row: OperatorRow) -> OperatorRow:
    return replace(row, name=row.name.split(".", 2)[2]) if _layer(row) else row


def _notes(plan: Plan, batch: int, found: Description) -> Iterator[str]:
    whose = "the plan's batch" if plan.batch else "the smallest batch that the plan takes"
    yield (
        "moved: elements that all devices together send between the operators of one layer, for "
        f"{whose}, {_count(batch, 'sequence')} of {plan.model.context} tokens; "
        f"of all layers {found.moved:,}"
    )
    padded = padded_vocabulary(plan)
    if padded != plan.model.vocabulary:
        yield f"vocabulary: {plan.model.vocabulary}, padded to {padded}"
    if plan.model.tied:
        yield "head: its weight is the embedding's table, and what moves of that is counted there"


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
    return "\n".join((*lines, "", *_beside(pictures, width), *notes)) + "\n"


def _cells(row: OperatorRow) -> tuple[str, ...]:
    numbers = [f"{each:,}" if each else "0" for each in (row.before, row.back)]
    return (row.name, row.sequence, row.takes, row.leaves, row.gradient, *numbers)


def picture(letter: str, layout: Layout) -> list[str]:
    """Lines of one layout: how it is cut, and which devices hold each block."""
    rows, columns = layout.grid
    lines = [f"{letter}  {told(layout)}"]
    if max(layout.grid) > MOST_CELLS:
        return lines
    cells = [[holders(layout, row, column) for column in range(columns)] for row in range(rows)]
    wide = max(len(cell) for line in cells for cell in line)
    return [*lines, *("   " + "  ".join(cell.ljust(wide) for cell in line) for line in cells)]


def told(layout: Layout) -> str:
    """How a layout is cut, in words."""
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


def _beside(pictures: list[list[str]], width: int) -> Iterator[str]:
    """Pictures side by side, as many as fit into `width` columns, an empty line after each row."""
    while pictures:
        taken, used = 0, 0
        for each in pictures:
            used += max(map(len, each)) + 4
            if taken and used - 4 > width:
                break
            taken += 1
        now, pictures = pictures[:taken], pictures[taken:]
        sizes = [max(map(len, each)) + 4 for each in now]
        for line in range(max(map(len, now))):
            parts = [each[line] if line < len(each) else "" for each in now]
            cells = zip(parts, sizes, strict=True)
            yield "".join(part.ljust(size) for part, size in cells).rstrip()
        yield ""
