"""A counterexample as data to draw: the instructions or devices involved, and their order.

It is made from a violation or a map fault (`primepar.schedule.evidence`). Pictures, SARIF and
annotations are made from it.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from primepar.schedule.evidence import InvolvedDevice

Kind = Literal[
    "waiting-cycle", "no-partner", "mismatch", "no-request", "done-twice", "never-done",
    "outside-the-grid", "absent-block", "wrong-data", "wrong-place", "unfinished-sum",
    "sum-lost", "nowhere", "homeless", "race", "never-awaited", "over-memory", "wrong-traffic",
]  # fmt: skip
Meaning = Literal["waits for", "moves to", "meets", "in flight", "frees", "never reaches"]


class InvolvedInstruction(Struct, frozen=True, omit_defaults=True):
    """An involved instruction; without an index it is before the first or at the end."""

    rank: int
    text: str
    index: int | None = None
    role: str = ""
    """Its part in the counterexample: hangs, never reached, reads, ..."""
    wrong: bool = False
    """Whether the sentence reports the error here."""
    source: str | None = None
    """Where the instruction was written, `train.py:42`."""


class Arrow(Struct, frozen=True):
    """An arrow from one event to another, by their indices in `Counterexample.events`."""

    source: int
    target: int
    means: Meaning


class Plane(Struct, frozen=True):
    """How often each sub-operator near one is computed, over two dims of the grid."""

    rows: str
    columns: str
    first: tuple[int, int]
    """Slice indices of the first row and column that are shown."""
    counts: tuple[tuple[int, ...], ...]


class Counterexample(Struct, frozen=True, omit_defaults=True):
    """What refutes a property: of a program in `events`, of a primitive in `devices`."""

    kind: Kind
    ranks: tuple[int, ...] = ()
    blocks: tuple[str, ...] = ()
    phase: str | None = None
    sub_operator: dict[str, int] | None = None
    plane: Plane | None = None
    events: tuple[InvolvedInstruction, ...] = ()
    arrows: tuple[Arrow, ...] = ()
    sides: dict[str, int] | None = None
    mesh: dict[str, int] | None = None
    """Axis -> its length."""
    places: tuple[tuple[int, ...], ...] = ()
    """Coordinates of all devices of the mesh, by rank; empty if it is too large to be drawn."""
    devices: tuple[InvolvedDevice, ...] = ()


WINDOW = 8
"""Largest number of rows and of columns of a plane."""


def plane_around(
    grid: dict[str, int], cell: dict[str, int], counts: dict[tuple[int, ...], int]
) -> Plane | None:
    """The plane of the last two dims through a cell; `counts` has only the computed cells."""
    dims = tuple(grid)
    if not dims or dims != tuple(cell) or any(cell[dim] >= grid[dim] for dim in dims):
        return None
    rows, columns = (dims[-2], dims[-1]) if len(dims) > 1 else ("", dims[-1])
    high, wide = grid.get(rows, 1), grid[columns]
    top = _first(cell.get(rows, 0), high)
    left = _first(cell[columns], wide)
    fixed = tuple(cell[dim] for dim in dims[:-2])
    return Plane(rows, columns, (top, left), tuple(
        tuple(
            counts.get((*fixed, row, column) if rows else (column,), 0)
            for column in range(left, min(left + WINDOW, wide))
        )
        for row in range(top, min(top + WINDOW, high))
    ))  # fmt: skip


def _first(index: int, slices: int) -> int:
    return max(0, min(index - WINDOW // 2, slices - WINDOW))
