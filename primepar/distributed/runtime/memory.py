"""Static description of one rank's memory: the tensors of blocks, and who owns them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

import torch

from primepar.distributed.runtime.arena import ALIGNMENT
from primepar.distributed.runtime.shapes import Shape, Slices

Slot = list[Any]
"""A list of one tensor, or of None while the block does not exist.

Closures keep the slot of a block and not the tensor. Process groups take lists of tensors, so a
slot is also an argument that is made once.
"""
View = Callable[[torch.Tensor], torch.Tensor]
Owner = Literal["arena", "run", "given"]


@dataclass(eq=False)
class Buffer:
    """Memory of one block, or of several blocks that are views of it.

    The owner is the `arena` (the same memory in every run), the `run` (allocated in every run; the
    caller gets what is left of it), or the caller (`given`). `first` and `last` are the positions
    of the first and last instruction that need the memory.
    """

    shape: Shape
    dtype: torch.dtype
    owner: Owner
    first: int = 0
    last: int = 0
    views: dict[str, Slices] = field(default_factory=dict)
    _slots: list[tuple[Slot, View]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return prod(self.shape) * self.dtype.itemsize

    def hand_over(self) -> None:
        """Allocate it in every run: then the caller can own it at the end."""
        if self.owner == "arena":
            self.owner = "run"

    def attach(self, slot: Slot, view: View) -> Slot:
        """Fill a slot with a view of the buffer, whenever it gets its memory."""
        self._slots.append((slot, view))
        return slot

    def bind(self, memory: torch.Tensor) -> None:
        """Take memory of its shape, and make all views of it."""
        for slot, view in self._slots:
            slot[0] = view(memory)

    def clear(self) -> None:
        """Give up the memory."""
        for slot, _ in self._slots:
            slot[0] = None

    def writable(self, name: str) -> bool:
        """Return whether no other block overlaps this one, so that it may be written."""
        view = self.views[name]
        others = (other for other_name, other in self.views.items() if other_name != name)
        return self.owner != "given" and not any(_overlap(view, other) for other in others)

    def span(self, name: str) -> tuple[int, int] | None:
        """Return first element and end of a block in memory; None if it is not contiguous."""
        first, length, partial = 0, 1, False
        for line, size in zip(reversed(self.views[name]), reversed(self.shape), strict=True):
            count = line.stop - line.start
            if partial and count > 1:
                return None
            first, length = first + line.start * length, length * size
            partial = partial or count < size
        return first, first + prod(line.stop - line.start for line in self.views[name])

    def has_standard_layout(self, name: str) -> bool:
        """Return whether a block has whole rows, from an aligned byte, as in memory of its own.

        Example: of `[4, 16]` in float32 the last 3 rows are such a block, as a row has 64 bytes.
        The first 8 columns are not, nor are the last rows of `[4, 24]`.
        """
        view = self.views[name]
        rows_only = view[1:] == all_of(self.shape)[1:]
        first = view[0].start * prod(self.shape[1:]) * self.dtype.itemsize if view else 0
        return rows_only and first % ALIGNMENT == 0


def _overlap(one: Slices, other: Slices) -> bool:
    return all(a.start < b.stop and b.start < a.stop for a, b in zip(one, other, strict=True))


def all_of(shape: Shape) -> Slices:
    """Return the slices of a block that fills its buffer."""
    return tuple(slice(0, size) for size in shape)
