"""Copies between device and host memory, and a count of what is on the device.

On CUDA host memory is pinned and copies run on a stream of their own: an eviction runs next to the
products that follow it, and the first instruction that names a fetched block waits for its copy. On
the CPU both memories are the same kind of memory, but they are kept apart and counted by the same
code. Torch keeps pinned memory that is given up, and uses it again after the copies that it is in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import torch

from primepar.distributed.runtime.memory import Slot
from primepar.distributed.runtime.shapes import Shape
from primepar.errors import MemoryLimitError


class CopyStream:
    """The copies of one process to and from pinned host memory, in their order."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def copy(self, into: torch.Tensor, source: torch.Tensor) -> torch.cuda.Event:
        """Queue a copy; returns its end."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            into.copy_(source, non_blocking=True)
        for block in (into, source):
            if block.is_cuda:
                block.record_stream(self._stream)  # its memory is reused only after the copy
        copied: torch.cuda.Event = self._stream.record_event()
        return copied

    def wait(self, copied: torch.cuda.Event) -> None:
        """Let the stream that computes wait for a copy; the host goes on."""
        torch.cuda.current_stream(self._device).wait_event(copied)

    def finish(self) -> None:
        """Return when all copies are done: afterwards the CPU may read what was copied to it."""
        self._stream.synchronize()


class HostMemory:
    """The blocks in host memory of one process: pinned for a GPU, and the copies to and from."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.copies = CopyStream(device) if device.type == "cuda" else None
        """The stream of copies; without one they are done at once."""
        self._arriving: dict[str, torch.cuda.Event] = {}
        self._busy = False
        """Whether copies were queued since the last `finish`."""

    def zeros(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        """Return a new block of zeros."""
        return self._empty(shape, dtype).zero_()

    def _empty(self, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=self.device.type == "cuda")

    def evict(self, block: torch.Tensor) -> torch.Tensor:
        """Return a copy of a device block in host memory."""
        kept = self._empty(tuple(block.shape), block.dtype)
        if self.copies is None:
            return kept.copy_(block)
        self.copies.copy(kept, block)
        self._busy = True
        return kept

    def fetch(self, name: str, kept: torch.Tensor, block: torch.Tensor) -> None:
        """Copy a host block into a device block, which may be used after `arrive`."""
        if self.copies is None:
            block.copy_(kept)
        else:
            self._arriving[name] = self.copies.copy(block, kept)
            self._busy = True

    def arrive(self, name: str) -> None:
        """Let what is queued next wait for the copy of a fetched block."""
        assert self.copies is not None
        self.copies.wait(self._arriving.pop(name))

    def finish(self) -> None:
        """Wait for all copies, if there were any: then the CPU may read blocks in host memory."""
        if self.copies is not None and self._busy:
            self.copies.finish()
            self._arriving.clear()
            self._busy = False


class DeviceCount:
    """Counts the elements of the blocks on the device at every change.

    Memory that several blocks share counts once, and whole. What one instruction takes for itself,
    and the workspace of kernels, do not count. Raises `MemoryLimitError` when the elements exceed
    `limit`, where there is one.
    """

    def __init__(self, limit: int | None, rank: int) -> None:
        self.limit, self.rank, self.elements, self.peak = limit, rank, 0, 0
        self._sharing = Counter[int]()

    def start(self, blocks: Mapping[str, torch.Tensor]) -> None:
        """Count the blocks before a run, and no others."""
        self.elements = self.peak = 0
        self._sharing.clear()
        for name, block in blocks.items():
            self.made(name, block)

    def slot(self, name: str) -> Slot:
        """Return a slot for a block."""
        return [None]

    def made(self, name: str, block: torch.Tensor) -> None:
        """Count a block that has memory now."""
        self._count(block, 1)
        self.peak = max(self.peak, self.elements)
        if self.limit is not None and self.elements > self.limit:
            raise MemoryLimitError(
                f"rank {self.rank}: expected at most {self.limit} elements on the device, got "
                f"{self.elements} with {name}: allow more device memory"
            )

    def gone(self, name: str, block: torch.Tensor) -> None:
        """Count a block that ends."""
        self._count(block, -1)

    def _count(self, block: torch.Tensor, times: int) -> None:
        storage = block.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes() // block.element_size()
        before = self._sharing[key]
        self._sharing[key] += times
        if before == 0 or self._sharing[key] == 0:
            self.elements += size * times
