"""The result of a run on emulated devices."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from primepar.reference.emulator.device import EmulatedDevice
from primepar.reference.emulator.provenance import Array, Block
from primepar.reference.emulator.scatter_gather import Memory
from primepar.schedule.events import Event
from primepar.schedule.meaning import Place


class Finished(NamedTuple):
    """A finished block of a tensor that a phase makes, with the rank that held it."""

    rank: int
    home: Place
    array: Array


@dataclass(frozen=True)
class Emulation:
    """Result of a run: blocks with their provenance, events, and two counts per rank."""

    blocks: list[dict[str, Block]]
    hosts: list[dict[str, Block]]
    """Blocks in host memory at the end."""
    events: list[Event]
    """In order of their start; times are units of the logical clock."""
    sent: list[Fraction]
    """Elements that each rank sent; `emulator.collectives` defines those of a collective."""
    devices: list[EmulatedDevice]
    """With the elements that each one held after every instruction."""
    finished: list[Finished]
    """Finished blocks of the tensors that the program makes: read by a phase, freed, or final."""

    @property
    def peak(self) -> list[int]:
        """Largest number of live elements on each rank, including buffers of posted receives."""
        return [device.peak for device in self.devices]

    def held(self, item: int, wide_item: int) -> list[int]:
        """Largest number of live bytes on each rank, by the bytes of an element.

        An element of a wide tensor has `wide_item`: float32 at least.
        """
        return [device.peak_bytes(item, wide_item) for device in self.devices]

    @property
    def memories(self) -> list[Memory]:
        """Block name -> array, for every rank."""
        return [{name: block.array for name, block in held.items()} for held in self.blocks]

    @property
    def all_memories(self) -> list[Memory]:
        """The same with the blocks in host memory."""
        pairs = zip(self.blocks, self.hosts, strict=True)
        return [
            {name: block.array for name, block in (*host.items(), *held.items())}
            for held, host in pairs
        ]
