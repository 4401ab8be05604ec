"""One piece of memory for all programs of a mesh, and the places of buffers in it.

The list of a rank is static, so it is known which instructions need a buffer. Two buffers may have
the same bytes if no instruction needs both. Buffers are placed once, when a program is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple
from weakref import WeakMethod

import numpy as np
import torch

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector of a CPU."""
ROUNDS = 12
"""Placements that are tried of each order."""
PERCENT = 1
"""More than the least is small enough to stop."""


class Lifetime(NamedTuple):
    """Bytes that are needed from instruction `first` to instruction `last`, both included."""

    bytes: int
    first: int
    last: int


def least_bytes(lifetimes: Sequence[Lifetime]) -> int:
    """Return the most bytes that one instruction needs: no placement takes less."""
    changes: dict[int, int] = {}
    for item in lifetimes:
        changes[item.first] = changes.get(item.first, 0) + _aligned(item.bytes)
        changes[item.last + 1] = changes.get(item.last + 1, 0) - _aligned(item.bytes)
    most = now = 0
    for place in sorted(changes):
        now += changes[place]
        most = max(most, now)
    return most


def offsets(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Return the first byte of every buffer, and the bytes of all together.

    Buffers are placed one after another, each in the smallest gap that is large enough, as in
    Pisarchyk and Lee, arXiv 2001.03288. Two orders are tried: the longest lifetime first, and the
    first use first. After a placement the buffer that ends last in memory becomes the first of the
    order. The smallest placement is taken.
    """
    numbers, least = range(len(lifetimes)), least_bytes(lifetimes)
    orders: list[Callable[[int], tuple[int, int]]] = [
        lambda n: (lifetimes[n].first - lifetimes[n].last, -lifetimes[n].bytes),
        lambda n: (lifetimes[n].first, -lifetimes[n].last),
    ]
    best = None
    for key in orders:
        order = sorted(numbers, key=key)
        for _ in range(ROUNDS):
            places, total = _placed(lifetimes, order)
            if best is None or total < best[1]:
                best = places, total
            if 100 * best[1] <= (100 + PERCENT) * least:
                return best
            last = max(order, key=lambda n: places[n] + lifetimes[n].bytes)
            order.remove(last)
            order.insert(0, last)
    assert best is not None
    return best


def _placed(lifetimes: Sequence[Lifetime], order: list[int]) -> tuple[list[int], int]:
    """Place buffers in an order; each in the smallest gap between those that live with it."""
    first, last, start, end = (np.zeros(len(order), dtype=np.int64) for _ in range(4))
    places, total = [0] * len(order), 0
    for count, index in enumerate(order):
        buffer = lifetimes[index]
        size = _aligned(buffer.bytes)
        live = (first[:count] <= buffer.last) & (last[:count] >= buffer.first)
        place = _gap(start[:count][live], end[:count][live], size)
        first[count], last[count] = buffer.first, buffer.last
        start[count], end[count] = place, place + size
        places[index], total = place, max(total, place + size)
    return places, total


def _gap(starts: np.ndarray, ends: np.ndarray, size: int) -> int:
    """Return the start of the smallest gap for `size` bytes, or the end of what is there."""
    if not len(starts):
        return 0
    order = np.argsort(starts, kind="stable")
    covered = np.maximum.accumulate(ends[order])
    begins = np.concatenate(([0], covered[:-1]))
    gaps = starts[order] - begins
    fitting = np.flatnonzero(gaps >= size)
    if not len(fitting):
        return int(covered[-1])
    return int(begins[fitting[np.argmin(gaps[fitting])]])


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Arena:
    """The memory of one device that the programs of a mesh share, as they run one after another.

    It grows to the largest program. Nothing in it outlives a run. On CUDA all programs run on one
    stream, and the waits in them order it after NCCL's streams. Blocks that are evicted have memory
    of their own, as their copies run on another stream. This was never run on CUDA.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)
        self._users: list[WeakMethod[Callable[[torch.Tensor], None]]] = []

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return self._memory.numel()

    def serve(self, size: int, bind: Callable[[torch.Tensor], None]) -> None:
        """Call a method with memory of at least `size` bytes, now and after every growth."""
        self._users = [user for user in self._users if user() is not None]
        self._users.append(WeakMethod(bind))
        if size <= self.bytes:
            bind(self._memory)
            return
        self._memory = torch.empty(size, dtype=torch.uint8, device=self.device)
        for user in self._users:
            method = user()
            if method is not None:
                method(self._memory)
