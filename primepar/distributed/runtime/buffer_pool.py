"""A pool of buffers for one process, by shape, so that copies to the host allocate no memory."""

from __future__ import annotations

from collections.abc import Callable

import torch

from primepar.distributed.runtime.shapes import Shape


class BufferPool:
    """Idle buffers of one device and dtype, by shape.

    An acquired buffer belongs to the caller until `release`. Under a limit of memory the pool
    `keeps` nothing: a released buffer is freed, so that any shape can have its memory.
    """

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype,
        *,
        pinned: bool = False,
        keeps: bool = True,
    ) -> None:
        self.device, self.dtype, self.pinned, self.keeps = device, dtype, pinned, keeps
        self.created = 0
        self._idle: dict[Shape, list[torch.Tensor]] = {}

    def shelf(self, shape: Shape) -> list[torch.Tensor]:
        """Return the list of idle buffers of a shape; it is the same object at every call."""
        return self._idle.setdefault(shape, [] if self.keeps else _Discarding())

    def maker(self, shape: Shape) -> Callable[[], torch.Tensor]:
        """Return a function that acquires a buffer of a shape."""
        idle = self.shelf(shape)

        def acquire() -> torch.Tensor:
            if idle:
                return idle.pop()
            self.created += 1
            return self.fresh(shape)

        return acquire

    def acquire(self, shape: Shape) -> torch.Tensor:
        """Return a buffer with arbitrary contents; allocate only if none of this shape is idle."""
        return self.maker(shape)()

    def fresh(self, shape: Shape) -> torch.Tensor:
        """Return a newly allocated buffer; the caller owns it and need not release it."""
        return torch.empty(shape, device=self.device, dtype=self.dtype, pin_memory=self.pinned)

    def release(self, buffer: torch.Tensor) -> None:
        """Return a buffer to the pool."""
        self.shelf(tuple(buffer.shape)).append(buffer)

    @property
    def idle(self) -> int:
        """Number of idle buffers."""
        return sum(map(len, self._idle.values()))


class _Discarding(list[torch.Tensor]):
    """A list of idle buffers that stays empty."""

    def append(self, buffer: torch.Tensor) -> None:
        """Drop the buffer."""
