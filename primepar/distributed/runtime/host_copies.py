"""Compiles evictions and fetches: copies between device and host memory, and waits for them.

On CUDA a copy runs on a stream of its own. The first instruction that names a fetched block waits
for its copy. Example: `fetch w; compute a from b; compute c from w` waits before the last one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from primepar.distributed.runtime.host_memory import HostMemory
from primepar.distributed.runtime.memory_places import MemoryPlaces
from primepar.distributed.runtime.running import Action, CompiledStep, Frame
from primepar.errors import ProgramError
from primepar.schedule.effects import effects
from primepar.schedule.program import Instruction


class HostCopies:
    """Compiles the copies of one rank's list, in order. `evicted` are the blocks on the host."""

    def __init__(
        self, host: HostMemory, places: MemoryPlaces, rank: int, evicted: Collection[str]
    ) -> None:
        self._host, self._places, self._rank = host, places, rank
        self._evicted = set(evicted)
        """Blocks in host memory."""
        self._arriving: set[str] = set()
        """Fetched blocks that nothing has named since."""

    def evict(self, name: str) -> list[Action]:
        """Return the copy of a block to the host, and the end of the block on the device."""
        host, slot = self._host, self._places.slot(name)
        self._evicted.add(name)

        def run(frame: Frame) -> None:
            frame.host[name] = host.evict(slot[0])

        return [run, *self._places.drop(name)]

    def fetch(self, name: str, location: str) -> list[Action]:
        """Return the copy of a block to the device.

        Raises `ProgramError` at the instruction's `location` if the block is not on the host.
        """
        if name not in self._evicted:
            raise ProgramError(
                f"{location}: expected block {name} in host memory, got none: evict it first"
            )
        self._evicted.remove(name)
        self._arriving.add(name)
        actions, slot, host = self._places.room(name), self._places.slot(name), self._host

        def run(frame: Frame) -> None:
            host.fetch(name, frame.host.pop(name), slot[0])

        return [*actions, run]

    def arrivals(self, node: Instruction) -> Iterator[CompiledStep]:
        """Yield the waits for the copies of fetched blocks that an instruction is first to name."""
        named = {*effects(node, self._rank).reads, *effects(node, self._rank).writes}
        for name in sorted(self._arriving & named):
            self._arriving.remove(name)
            if self._host.copies is not None:
                yield CompiledStep((), [_arrival(self._host, name)])


def _arrival(host: HostMemory, name: str) -> Action:
    return lambda frame: host.arrive(name)
