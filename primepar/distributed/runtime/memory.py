"""Static description of one rank's memory: what has which memory, and the actions on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from primepar.distributed.runtime.shapes import Shape

ALIGNMENT = 64
"""Bytes: a cache line, and what torch aligns memory to on a CPU."""
Slot = list[Any]
"""A list of one tensor, or of None while the block does not exist.

Closures keep the slot of a block and not the tensor. Process groups take lists of tensors, so a
slot is also an argument that is made once.
"""
View = Callable[[torch.Tensor], torch.Tensor]
Span = tuple[int, int]
"""First element of a block in its buffer, and its end."""


def same(block: torch.Tensor) -> torch.Tensor:
    """Return the block."""
    return block


@dataclass(eq=False)
class Buffer:
    """Memory of one block, or of parts that are joined later, and of their whole.

    It is `given` by the caller, or allocated in every run when its first block is made, and
    released with its last one. What is left at the end is the caller's.
    """

    shape: Shape
    dtype: torch.dtype
    given: bool = False
    spans: dict[str, Span] = field(default_factory=dict)
    """Block -> its place. Blocks are contiguous, and begin at a multiple of `ALIGNMENT` bytes."""
    _slots: list[tuple[Slot, View]] = field(default_factory=list)

    def attach(self, slot: Slot, view: View = same) -> Slot:
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
        first, end = self.spans[name]
        others = (span for other, span in self.spans.items() if other != name)
        return not self.given and not any(first < last and start < end for start, last in others)


def piece(first: int, shape: Shape) -> View:
    """Return the view of the elements from `first` on, in a shape."""
    return lambda memory: memory.view(-1)[first : first + prod(shape)].view(shape)


# Actions: what a step does at run time. They take the frame of the run, and need nothing of it.


@dataclass(eq=False)
class Allocate:
    """Gives a buffer new memory."""

    buffer: Buffer
    new: Callable[[Shape], torch.Tensor]
    """`new_empty` of a tensor of its dtype: it takes half the time of `torch.empty`."""

    def __call__(self, frame: object) -> None:
        """Allocate."""
        self.buffer.bind(self.new(self.buffer.shape))


@dataclass(eq=False)
class Take:
    """Gives a buffer memory that a kernel returns."""

    buffer: Buffer
    make: Callable[[Any], torch.Tensor | None]

    def __call__(self, frame: object) -> None:
        """Call the kernel."""
        made = self.make(frame)
        assert made is not None
        assert made.dtype == self.buffer.dtype
        self.buffer.bind(made)


@dataclass(eq=False)
class Release:
    """Gives up the memory of a buffer."""

    buffer: Buffer

    def __call__(self, frame: object) -> None:
        """Release."""
        self.buffer.clear()


def copying(*pairs: tuple[Slot, Slot]) -> Callable[[object], None]:
    """Return the copies of blocks, (into, from)."""

    def copy(frame: object) -> None:
        for into, source in pairs:
            into[0].copy_(source[0])

    return copy
