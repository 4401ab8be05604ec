"""Layouts of one operator under a sequence: of its inputs, of its output, of what it looks up.

All of them are functions of the operator's kind and the text of its sequence, and are cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod

from primepar.errors import SequenceError
from primepar.models.graph import Kind, Operator
from primepar.partition.by_dimension import ByInput, Replicated
from primepar.partition.registry import parse_sequence
from primepar.partition.sequence_parallel import SequenceRow
from primepar.schedule.layout import Layout
from primepar.schedule.lowering import layout
from primepar.schedule.movement import Movement
from primepar.schedule.operators import Phase
from primepar.schedule.sequence import Element, Sequence

Groups = tuple[tuple[int, ...], ...]
"""Groups of ranks."""


@dataclass(frozen=True)
class Ends:
    """Layouts over (rows, features) of what an operator takes and leaves.

    `input` is the layout of each input before forward. `output` is that of the output after forward
    and of dO before backward. `input_gradient` is that in which backward leaves the gradient of
    each input. All three are equal except for a linear operator.
    """

    input: Layout
    output: Layout
    input_gradient: Layout


@lru_cache(maxsize=1024)
def sequence_lines(layout: Layout, batch: int) -> Groups:
    """Groups of ranks that hold the parts of one sequence in the same columns, in that order.

    Every rank is in one group, replicas of a block in different groups. Groups have one rank where
    every block holds whole sequences. `batch` is the number of sequences of a step; it must fit.
    """
    parts = max(1, layout.grid[0] // batch)
    return tuple(
        line[first : first + parts]
        for line in layout.peers_along(0)
        for first in range(0, len(line), parts)
    )


def part(whole: Layout, dims: tuple[int, ...]) -> Layout:
    """The layout over some of its dims, in the order of `dims`."""
    held = tuple(
        tuple(sorted({tuple(index[dim] for dim in dims) for index in blocks}))
        for blocks in whole.held
    )
    return Layout(tuple(whole.grid[dim] for dim in dims), held).coarsest()


@lru_cache(maxsize=1024)
def ends_of(kind: Kind, text: str) -> Ends:
    """Layouts of an operator of some kind under a sequence. Raises `SequenceError`."""
    if kind == "linear":
        return Ends(resident(text, "I"), resident(text, "O"), resident(text, "dI"))
    output = resident(text, "O", linear=False)
    return Ends(output, output, output)


@lru_cache(maxsize=1024)
def resident(text: str, tensor: str, linear: bool = True) -> Layout:
    """The resident layout of a tensor: the coarsest one that it has between phases.

    Raises `SequenceError` where a device holds several blocks and the operator is not `linear`.
    """
    phase: Phase = "backward" if tensor == "dI" else "forward"
    last = tensor in ("O", "dI")
    resident_layout = layout(movement_of(text, linear), phase, tensor, last=last).coarsest()
    most = max(map(len, resident_layout.held))
    if most > 1 and not linear:
        raise SequenceError(
            f"expected one block of {tensor} on every device between phases, as only a linear "
            f"operator may leave several, got {most} in {text!r}: put Ks, Ns, C, Cr or D last"
        )
    return resident_layout


@lru_cache(maxsize=256)
def movement_of(text: str, linear: bool, spends_weight: bool = False) -> Movement:
    """The movement of a sequence, cached."""
    return Movement(parse_sequence(text, linear=linear), spends_weight)


@lru_cache(maxsize=256)
def lookup_of(text: str) -> Layout:
    """What each rank looks up under a sequence of the embedding: (rows, vocabulary, hidden)."""
    cut = (ByInput, SequenceRow)
    elements = [
        Element(ByInput(), element.sides) if isinstance(element.primitive, cut) else element
        for element in parse_sequence(text, linear=False).elements
    ]
    lines = resident(str(Sequence(tuple(elements))), "O", linear=False)
    vocabulary = Sequence(tuple(map(_without_other_cuts, elements)))
    held = tuple(
        tuple(
            (row, n, column)
            for row, column in blocks
            for n in vocabulary.slices("forward", rank, 0)["N"]
        )
        for rank, blocks in enumerate(lines.held)
    )
    return Layout((lines.grid[0], vocabulary.grid["N"], lines.grid[1]), held)


@lru_cache(maxsize=256)
def summed_rows_of(text: str) -> Layout:
    """Layout in which partial rows of the embedding are reduced; see `layouts.summed_rows`.

    The ranks of a group looked up the same rows in different parts of the vocabulary. Each keeps
    its own block of the output where that is one of the group's and still free. The others take
    what is left. Example: a group of ranks 0 and 1 shares the rows 0 and 1; rank 1 holds row 0 of
    the output and keeps it, so rank 0 keeps row 1.
    """
    whole, output = lookup_of(text), resident(text, "O", linear=False)
    parts = output.grid[0] // whole.grid[0]
    kept: dict[int, int] = {}
    for group in whole.peers_along(1):
        first = parts * whole.held[group[0]][0][0]
        free = [row for row in range(first, first + parts) for _ in range(len(group) // parts)]
        for rank in group:
            ((row, _),) = output.held[rank]
            if row in free:
                free.remove(row)
                kept[rank] = row
        kept.update(zip((rank for rank in group if rank not in kept), free, strict=True))
    held = (((kept[rank], column),) for rank, ((_, column),) in enumerate(output.held))
    return Layout(output.grid, tuple(held))


def _without_other_cuts(element: Element) -> Element:
    """The element where it cuts N, else the same number of devices, replicated."""
    if isinstance(element.primitive, ByInput):
        return element
    return Element(Replicated(), (prod(element.axis_lengths),))


def sequence_of(operator: Operator, text: str) -> Sequence:
    """The sequence that a text names for an operator. Raises `SequenceError`."""
    return _sequence(text, operator.kind == "linear")


@lru_cache(maxsize=1024)
def _sequence(text: str, linear: bool) -> Sequence:
    return parse_sequence(text, linear=linear)
