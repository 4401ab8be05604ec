"""Buffers of one process, kept by shape and used again, so that a step allocates none."""

from __future__ import annotations

from collections.abc import Callable

import torch

Shape = tuple[int, ...]


class BufferPool:
    """Idle buffers of one device and dtype, by shape.

    A buffer that has been handed out belongs to whoever has it, and comes back with `release`.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, *, pinned: bool = False) -> None:
        self.device, self.dtype, self.pinned = device, dtype, pinned
        self.created = 0
        self._idle: dict[Shape, list[torch.Tensor]] = {}

    def shelf(self, shape: Shape) -> list[torch.Tensor]:
        """The idle buffers of a shape, always the same list."""
        return self._idle.setdefault(shape, [])

    def maker(self, shape: Shape) -> Callable[[], torch.Tensor]:
        """A function that hands out a buffer of a shape, like `acquire`."""
        idle = self.shelf(shape)

        def acquire() -> torch.Tensor:
            if idle:
                return idle.pop()
            self.created += 1
            return self.fresh(shape)

        return acquire

    def acquire(self, shape: Shape) -> torch.Tensor:
        """Return a buffer of any contents; a new one only if none of this shape is idle."""
        return self.maker(shape)()

    def fresh(self, shape: Shape) -> torch.Tensor:
        """Return a buffer that never comes back: the caller keeps it, and lets it go."""
        return torch.empty(shape, device=self.device, dtype=self.dtype, pin_memory=self.pinned)

    def release(self, buffer: torch.Tensor) -> None:
        """Take a buffer back."""
        self.shelf(tuple(buffer.shape)).append(buffer)

    @property
    def idle(self) -> int:
        """Buffers that nobody uses now."""
        return sum(map(len, self._idle.values()))
