"""Chooses which buffers are in the arena, and which are allocated while they are needed.

The arena exists all the time, next to the blocks that the caller owns. Memory that is allocated
when it is needed can be an activation's first and a gradient's later. But each allocation takes
time on the host. So large buffers are allocated, and smaller ones only where that saves much: in a
program that makes many blocks for the caller. Example: activations take 12 MiB in backward, and end
while 7 MiB of gradients are made. Then 13 MiB are enough, and with an arena it is 19.
"""

from __future__ import annotations

from collections.abc import Iterable

from primepar.distributed.runtime.arena import Lifetime, least_bytes
from primepar.distributed.runtime.memory import Buffer

LARGE = 2**20
"""Bytes of a buffer that is always allocated when it is needed, and released after that.

Next to the work on so much data an allocation takes no time.
"""
MEDIUM = 2**16
"""Bytes of a buffer that is allocated like a large one where that saves enough."""
ENOUGH = 0.85
"""The largest share of the memory that is left, if medium buffers are allocated."""


def choose_owners(buffers: Iterable[Buffer]) -> None:
    """Hand over the buffers of the arena that are allocated in every run instead."""
    buffers = list(buffers)
    saves = _memory(buffers, MEDIUM) <= ENOUGH * _memory(buffers, LARGE)
    for buffer in buffers:
        if buffer.bytes >= (MEDIUM if saves else LARGE):
            buffer.hand_over()


def _memory(buffers: Iterable[Buffer], size: int) -> int:
    """Return the bytes of the arena and of all other memory if buffers of `size` are allocated."""
    kinds: dict[bool, list[Lifetime]] = {True: [], False: []}
    for buffer in buffers:
        in_arena = buffer.owner == "arena" and buffer.bytes < size
        kinds[in_arena].append(Lifetime(buffer.bytes, buffer.first, buffer.last))
    return sum(map(least_bytes, kinds.values()))
