"""Static description of one rank's memory: which pool owns a buffer, and which blocks view it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod

import torch

from primepar.distributed.runtime.buffers import BufferPool, Shape
from primepar.distributed.runtime.shapes import Slices


@dataclass(eq=False)
class Buffer:
    """Memory of one block, or of several blocks that are views of it.

    `pool` is the pool that it returns to, or None. A shared buffer is itself in the dict of blocks,
    under `key`.
    """

    shape: Shape
    pool: BufferPool | None = None
    given: bool = False
    key: str = ""
    views: dict[str, Slices] = field(default_factory=dict)
    make: Callable[[], torch.Tensor] = field(init=False)

    @classmethod
    def new(cls, shape: Shape, pool: BufferPool, leaves: bool) -> Buffer:
        """Return a buffer of a pool; if it `leaves`, the caller owns it at the end."""
        buffer = cls(shape, pool)
        buffer.make = pool.maker(shape)
        if leaves:
            buffer.hand_over()
        return buffer

    def hand_over(self) -> None:
        """Let the caller own it at the end: then it is allocated outside the pool."""
        if self.pool is not None:
            self.make = partial(self.pool.fresh, self.shape)
        self.pool = None

    def writable(self, name: str) -> bool:
        """Return whether no other block overlaps this one, so that it may be written."""
        view = self.views[name]
        others = (other for other_name, other in self.views.items() if other_name != name)
        return not self.given and not any(_overlap(view, other) for other in others)

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


def _overlap(one: Slices, other: Slices) -> bool:
    return all(a.start < b.stop and b.start < a.stop for a, b in zip(one, other, strict=True))


def all_of(shape: Shape) -> Slices:
    """Return the slices of a block that fills its buffer."""
    return tuple(slice(0, size) for size in shape)
