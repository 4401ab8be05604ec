"""Layouts of many sequences at once, as arrays, and what redistribution between them takes.

A device holds some slices of the rows by some of the columns. The layout of a sequence is the
Kronecker product of those of its elements, as each element cuts what the one before it left.

Legend: D devices, G slices of a dim (as many as devices), P, Q layouts.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from primepar.errors import SequenceError
from primepar.plan.cost.links import Wires
from primepar.plan.cost.moving import moving
from primepar.schedule.lowering import layout
from primepar.schedule.operators import Phase, tensor_dims
from primepar.schedule.sequence import Element

Bools = NDArray[np.bool_]
Floats = NDArray[np.float32]
ENDS: Final[dict[str, tuple[Phase, bool]]] = {
    "I": ("forward", False),
    "W": ("forward", False),
    "O": ("forward", True),
    "dI": ("backward", True),
}
"""Tensor -> the phase that says where it lies between phases, and whether at the phase's end."""


@dataclass(frozen=True)
class Spread:
    """Slices of rows and of columns that every device holds: arrays (devices, slices)."""

    rows_DG: Bools
    columns_DG: Bools

    @classmethod
    def whole(cls, devices: int = 1) -> Spread:
        """Everything on every device."""
        return cls(np.ones((devices, 1), bool), np.ones((devices, 1), bool))

    @property
    def grid(self) -> tuple[int, int]:
        """Slices of the rows and of the columns."""
        return self.rows_DG.shape[1], self.columns_DG.shape[1]

    def then(self, inner: Spread) -> Spread:
        """Every slice cut again by the next element, on its devices."""
        rows = _kronecker(self.rows_DG, inner.rows_DG)
        return Spread(rows, _kronecker(self.columns_DG, inner.columns_DG))

    def turned(self) -> Spread:
        """Rows and columns exchanged."""
        return Spread(self.columns_DG, self.rows_DG)


def _kronecker(outer: Bools, inner: Bools) -> Bools:
    found = outer[:, None, :, None] & inner[None, :, None, :]
    return found.reshape(len(outer) * len(inner), -1)


@lru_cache(maxsize=4096)
def element_spread(element: Element, tensor: str) -> Spread:
    """Where an element leaves a tensor between phases, over its first and its last dim.

    Raises `SequenceError` where what a device holds is no product of slices.
    """
    phase, last = ENDS[tensor]
    found = layout(moving(element).movement, phase, tensor, last=last)
    named = [dim for dim in tensor_dims(tensor) if dim in moving(element).sequence.grid]
    first, second = tensor_dims(tensor)[-2:]
    slices = []
    for dim in (first, second):
        if dim not in named:
            slices.append(np.ones((found.ranks, 1), bool))
            continue
        held_DG = np.zeros((found.ranks, found.grid[named.index(dim)]), bool)
        for rank in range(found.ranks):
            held_DG[rank, found.slices(rank, named.index(dim))] = True
        slices.append(held_DG)
    blocks = slices[0].sum(axis=1) * slices[1].sum(axis=1)
    if [len(own) for own in found.held] != blocks.tolist():
        raise SequenceError(
            f"expected slices of {first} by slices of {second} of {tensor} on every device, got "
            f"other blocks for {element.primitive.text(element.sides)}: this is not planned"
        )
    return Spread(*slices)


@dataclass
class Layouts:
    """The distinct layouts of a search over 2^n devices, by number."""

    wires: Wires
    _numbers: dict[tuple[bytes, bytes], int] = field(default_factory=dict)
    _rows: list[Bools] = field(default_factory=list)
    _columns: list[Bools] = field(default_factory=list)
    _about: dict[int, _Told] = field(default_factory=dict)

    def number(self, spread: Spread) -> int | None:
        """Number of a layout, a new one where it has none yet.

        None where a dim has slices that are no 1 / devices of it, or where the layout is not known.
        """
        devices = self.wires.devices
        fine = []
        for held_DG in (spread.rows_DG, spread.columns_DG):
            if devices % held_DG.shape[1]:
                return None
            fine.append(np.repeat(held_DG, devices // held_DG.shape[1], axis=1))
        rows, columns = fine
        key = np.packbits(rows).tobytes(), np.packbits(columns).tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._rows)
            self._rows.append(rows)
            self._columns.append(columns)
        return self._numbers[key]

    def slices(self, number: int, dim: int) -> int:
        """In how many parts the layout cuts rows (0) or columns (1)."""
        return self._told(number).slices[dim]

    def share(self, number: int) -> float:
        """The largest share of the tensor on a device."""
        return self._told(number).share

    def line(self, number: int, dim: int) -> tuple[int, ...]:
        """Device bits of the groups that hold all parts of rows (0) or columns (1) between them.

        The nearest replica of each part is taken.
        """
        return self._told(number).lines[dim]

    def _told(self, number: int) -> _Told:
        if number not in self._about:
            rows, columns = self._rows[number], self._columns[number]
            counts = rows.sum(axis=1), columns.sum(axis=1)
            slices = tuple(int(len(rows) // count.max()) for count in counts)
            share = float((counts[0] * counts[1]).max()) / len(rows) ** 2
            lines = self._bits(columns, rows), self._bits(rows, columns)
            self._about[number] = _Told((slices[0], slices[1]), share, lines)
        return self._about[number]

    def _bits(self, same: Bools, apart: Bools) -> tuple[int, ...]:
        alike = np.flatnonzero((same == same[0]).all(axis=1))
        _, first = np.unique(np.packbits(apart[alike], axis=1), axis=0, return_index=True)
        apart_by = int(np.bitwise_or.reduce(alike[first]))
        bits = self.wires.bits
        return tuple(place for place in range(bits) if apart_by >> (bits - 1 - place) & 1)

    def ways(self, sources: Several[int], targets: Several[int]) -> Ways:
        """What redistribution from each of some layouts to each of others loads the links with."""
        here, there = self._held(sources), self._held(targets)
        devices = self.wires.devices
        needed_DQ = _needed(there)
        left = needed_DQ[:, None] - _overlaps(here, there)
        total_PQ = left.sum(axis=0)
        loads = []
        for level, link in enumerate(self.wires.links):
            joined = 1 << sum(each <= level for each in self.wires.levels)
            outer = np.zeros_like(left)
            if joined < devices:
                outer = needed_DQ[:, None] - self._near(here, there, joined)
            through = left - outer
            below = 1 << self.wires.below(level)
            if link.shared and below > 1:
                through = through.reshape(-1, below, *total_PQ.shape).sum(axis=1)
            loads.append(through.max(axis=0))
            left = outer
        return Ways(self.wires, tuple(loads), total_PQ)

    def received(self, sources: Several[int], targets: Several[int]) -> Floats:
        """From each of some layouts to each of others: the most that a device lacks, as a share."""
        here, there = self._held(sources), self._held(targets)
        found: Floats = (_needed(there)[:, None] - _overlaps(here, there)).max(axis=0)
        return found

    def _held(self, numbers: Several[int]) -> tuple[Floats, Floats]:
        """Rows and columns of some layouts, (P, D, G) each."""
        rows = np.stack([self._rows[each] for each in numbers]).astype(np.float32)
        return rows, np.stack([self._columns[each] for each in numbers]).astype(np.float32)

    def _near(
        self, here: tuple[Floats, Floats], there: tuple[Floats, Floats], joined: int
    ) -> Floats:
        """Shares of what every device needs that its group of `joined` devices holds, (D, P, Q)."""
        devices, count = self.wires.devices, len(here[0])
        rows, columns = (held.reshape(count, -1, joined, devices) for held in here)
        all_rows, all_columns = rows.max(axis=2), columns.max(axis=2)
        blocks = np.einsum("pgdr,pgdc->pgrc", rows, columns) > 0
        boxes = all_rows.sum(axis=2) * all_columns.sum(axis=2)
        boxed = (blocks.sum(axis=(2, 3)) == boxes).all(axis=1)
        spread = tuple(np.repeat(each, joined, axis=1) for each in (all_rows, all_columns))
        found = _overlaps((spread[0], spread[1]), there)
        if not boxed.all():
            found[:, ~boxed] = _in_blocks(blocks[~boxed], there, joined)
        return found


class _Told(NamedTuple):
    """What is asked of one layout again and again."""

    slices: tuple[int, int]
    share: float
    lines: tuple[tuple[int, ...], tuple[int, ...]]


def _needed(there: tuple[Floats, Floats]) -> Floats:
    """Share of the tensor that each device has in a layout, (D, Q)."""
    rows, columns = there
    found: Floats = (rows.sum(axis=2) * columns.sum(axis=2)).T / rows.shape[1] ** 2
    return found


def _overlaps(here: tuple[Floats, Floats], there: tuple[Floats, Floats]) -> Floats:
    """Share of the tensor that each device has in both layouts, (D, P, Q)."""
    devices = here[0].shape[1]
    found = np.empty((devices, len(here[0]), len(there[0])), np.float32)
    for rank in range(devices):
        np.matmul(here[0][:, rank], there[0][:, rank].T, out=found[rank])
        found[rank] *= here[1][:, rank] @ there[1][:, rank].T
    found /= devices**2
    return found


def _in_blocks(blocks: Bools, there: tuple[Floats, Floats], joined: int) -> Floats:
    """The same for groups that hold what is no product of rows and columns."""
    count, _, slices, _ = blocks.shape
    devices = there[0].shape[1]
    found = np.empty((devices, count, len(there[0])), np.float32)
    for rank in range(devices):
        group = blocks[:, rank // joined].reshape(count, -1).astype(np.float32)
        cells = there[0][:, rank, :, None] * there[1][:, rank, None, :]
        np.matmul(group, cells.reshape(len(cells), -1).T, out=found[rank])
    found /= slices**2
    return found


@dataclass(frozen=True)
class Ways:
    """From each of P layouts to each of Q: the share of the tensor that the links carry.

    `loads` has for every level what its busiest port receives, `moved_PQ` what all devices receive
    together (PrimePar, equations 8 and 9).
    """

    wires: Wires
    loads: tuple[Floats, ...]
    moved_PQ: Floats

    def seconds(self, size: float) -> NDArray[np.float64]:
        """Time of each way for a tensor of so many bytes."""
        found = np.zeros(self.moved_PQ.shape)
        for link, load in zip(self.wires.links, self.loads, strict=True):
            took = load * np.float64(size / link.bandwidth)
            np.add(took, link.latency, out=took, where=load > 0)
            np.maximum(found, took, out=found)
        return found
