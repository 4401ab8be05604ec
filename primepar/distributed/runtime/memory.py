"""Memory of one rank as it is followed before the program runs: whose it is, who sees it."""

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
    """Memory of one block, or of several that are views of it.

    `pool` is where it goes back, None where it does not. Where it is shared the whole is kept
    under `key`, beside the blocks.
    """

    shape: Shape
    pool: BufferPool | None = None
    given: bool = False
    key: str = ""
    views: dict[str, Slices] = field(default_factory=dict)
    make: Callable[[], torch.Tensor] = field(init=False)

    @classmethod
    def new(cls, shape: Shape, pool: BufferPool, leaves: bool) -> Buffer:
        """A buffer of a pool, or one that is the caller's at the end."""
        buffer = cls(shape, pool)
        buffer.make = pool.maker(shape)
        if leaves:
            buffer.hand_over()
        return buffer

    def hand_over(self) -> None:
        """Have it be the caller's at the end, so that it does not come from the pool."""
        if self.pool is not None:
            self.make = partial(self.pool.fresh, self.shape)
        self.pool = None

    def writable(self, name: str) -> bool:
        """Whether nobody else sees what is written to a block."""
        own = self.views[name]
        others = (at for other, at in self.views.items() if other != name)
        return not self.given and not any(_overlap(own, at) for at in others)

    def span(self, name: str) -> tuple[int, int] | None:
        """First element and end of a block in memory; None where it is not in one piece."""
        first, length, partial = 0, 1, False
        for at, size in zip(reversed(self.views[name]), reversed(self.shape), strict=True):
            count = at.stop - at.start
            if partial and count > 1:
                return None
            first, length = first + at.start * length, length * size
            partial = partial or count < size
        return first, first + prod(at.stop - at.start for at in self.views[name])


def _overlap(one: Slices, other: Slices) -> bool:
    return all(a.start < b.stop and b.start < a.stop for a, b in zip(one, other, strict=True))


def all_of(shape: Shape) -> Slices:
    """The place of a block that has a buffer alone."""
    return tuple(slice(0, size) for size in shape)
