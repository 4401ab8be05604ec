"""Buffers of one process, kept by shape and used again, so that a step allocates none."""

from __future__ import annotations

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

    def acquire(self, shape: Shape) -> torch.Tensor:
        """Return a buffer of any contents; a new one only if none of this shape is idle."""
        idle = self._idle.get(shape)
        if idle:
            return idle.pop()
        self.created += 1
        return self.fresh(shape)

    def fresh(self, shape: Shape) -> torch.Tensor:
        """Return a buffer that will never come back: autograd keeps it, and lets it go."""
        return torch.empty(shape, device=self.device, dtype=self.dtype, pin_memory=self.pinned)

    def release(self, buffer: torch.Tensor) -> None:
        """Take a buffer back."""
        self._idle.setdefault(tuple(buffer.shape), []).append(buffer)

    @property
    def idle(self) -> int:
        """Buffers that nobody uses now."""
        return sum(map(len, self._idle.values()))
