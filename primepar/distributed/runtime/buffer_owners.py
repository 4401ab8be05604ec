"""Chooses which buffers are in the arena, and which are allocated while they are needed.

The arena exists all the time, next to the blocks that the caller owns. Memory that is allocated
when it is needed can be an activation's first and a gradient's later. But each allocation takes
time on the host. Buffers of 1 MiB are always allocated: next to the work on so much data that takes
no time. Smaller ones are where it saves enough, as in a program that makes many blocks for the
caller. Example: activations take 12 MiB in backward, and end while 7 MiB of gradients are made.
Then 13 MiB are enough, and with an arena it is 19.
"""

from __future__ import annotations

from collections.abc import Iterable

from primepar.distributed.runtime.arena import Lifetime, least_bytes
from primepar.distributed.runtime.memory import Buffer

SIZES = tuple(2**power for power in range(20, 15, -1))
"""Bytes from which on buffers are allocated; one of these is chosen for a program."""
PRICE = 1e-3
"""Share of the memory that an allocation has to save."""


def choose_owners(buffers: Iterable[Buffer]) -> None:
    """Hand over the buffers of the arena that are allocated in every run instead."""
    buffers = list(buffers)
    size = min(SIZES, key=lambda size: _cost(buffers, size))
    for buffer in buffers:
        if buffer.bytes >= size:
            buffer.hand_over()


def _cost(buffers: Iterable[Buffer], size: int) -> float:
    """Return the bytes if buffers of `size` are allocated, and the price of the allocations."""
    kinds: dict[bool, list[Lifetime]] = {True: [], False: []}
    allocations = 0
    for buffer in buffers:
        in_arena = buffer.owner == "arena" and buffer.bytes < size
        kinds[in_arena].append(Lifetime(buffer.bytes, buffer.first, buffer.last))
        allocations += buffer.owner == "arena" and size <= buffer.bytes < SIZES[0]
    return sum(map(least_bytes, kinds.values())) * (1 + PRICE * allocations)
