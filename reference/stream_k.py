"""Stream-K on real matrices: workers in one memory, with one buffer and one flag each.

The emulator runs the program of a method, one instruction for each iteration. Here a part of a tile
is one product, so that matrices of thousands of rows take milliseconds. Each worker is a coroutine.
It pauses where it waits for a flag that is not raised yet, and the next worker goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from primepar.errors import DeadlockError, ShapeError
from primepar.partition.stream_k import StreamK
from primepar.partition.work_ranges import TilePart
from primepar.reference.emulator.contents import Array


@dataclass
class SharedMemory:
    """The memory of the GPU: both operands, the output, and what each worker passes on."""

    method: StreamK
    I_MN: Array
    W_NK: Array
    O_MK: Array
    partial: dict[int, Array] = field(default_factory=dict)
    """Worker -> its partial tile; that it is there is the flag."""

    def product(self, part: TilePart) -> Array:
        """The partial sum of the iterations of a part, `[tile_m, tile_k]`."""
        cuts, (m, k) = self.method.cuts, divmod(part.tile, self.method.slices["K"])
        rows, columns = slice(*cuts["M"][m : m + 2]), slice(*cuts["K"][k : k + 2])
        inner = slice(cuts["N"][part.start], cuts["N"][part.stop])
        return np.asarray(self.I_MN[rows, inner] @ self.W_NK[inner, columns])

    def write(self, part: TilePart, tile: Array) -> None:
        """Write a finished tile into the output."""
        cuts, (m, k) = self.method.cuts, divmod(part.tile, self.method.slices["K"])
        self.O_MK[cuts["M"][m] : cuts["M"][m + 1], cuts["K"][k] : cuts["K"][k + 1]] = tile


def stream_k_product(
    method: StreamK, I_MN: Array, W_NK: Array, order: Sequence[int] | None = None
) -> Array:
    """Return `I W`, `[M, K]`, as the workers of a method compute it.

    Worker `order[0]` runs until it waits, then `order[1]`, and so on; without an order, from the
    last to the first. Raises `ShapeError` if the matrices do not have the sizes of the method,
    `DeadlockError` if all workers wait.
    """
    expected = [(method.M, method.N), (method.N, method.K)]
    if [I_MN.shape, W_NK.shape] != expected:
        raise ShapeError(
            f"expected I and W of {expected[0]} and {expected[1]}, "
            f"got {I_MN.shape} and {W_NK.shape}: give the method their sizes"
        )
    O_MK = np.zeros((method.M, method.K), np.result_type(I_MN, W_NK))
    memory = SharedMemory(method, I_MN, W_NK, O_MK)
    running = {worker: _work(memory, worker) for worker in order or reversed(range(method.workers))}
    waits: dict[int, int | None] = {}
    while running:
        before = waits
        waits = {worker: next(coroutine, None) for worker, coroutine in running.items()}
        running = {worker: running[worker] for worker in running if waits[worker] is not None}
        if running and waits == before:
            raise DeadlockError(f"expected a flag, got none: workers {list(running)} wait")
    return memory.O_MK


def _work(memory: SharedMemory, worker: int) -> Iterator[int]:
    """Run one worker, and yield the worker that it waits for."""
    for part in memory.method.split.parts[worker]:
        tile = memory.product(part)
        if part.owner != worker:
            memory.partial[worker] = tile
            continue
        for sender in part.senders:
            while sender not in memory.partial:
                yield sender
            tile = tile + memory.partial[sender]
        memory.write(part, tile)
