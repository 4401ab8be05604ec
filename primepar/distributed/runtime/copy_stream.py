"""A CUDA stream for copies between device and host memory, next to the stream that computes.

A copy starts after the work that was queued before it, and runs next to what is queued after it.
What needs its result waits for its event. This was never run on CUDA: its order is tested with
streams that only record.
"""

from __future__ import annotations

import torch


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
