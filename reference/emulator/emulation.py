"""What a run on emulated devices leaves."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

from primepar.reference.emulator.provenance import Array, Block
from primepar.reference.emulator.scatter_gather import Memory
from primepar.schedule.events import Event
from primepar.schedule.meaning import Place


class Finished(NamedTuple):
    """A finished block of a tensor that a phase makes, where it was seen."""

    rank: int
    home: Place
    array: Array


@dataclass(frozen=True)
class Emulation:
    """What a run left: blocks with their provenance, events, and two counts per rank."""

    blocks: list[dict[str, Block]]
    hosts: list[dict[str, Block]]
    """What was evicted and not fetched."""
    events: list[Event]
    """In order of start; the times are units of the logical clock."""
    sent: list[Fraction]
    """Elements that left each rank; `emulator.collectives` defines what a collective sends."""
    peak: list[int]
    """Most elements alive at once on each rank, buffers of posted receives included."""
    finished: list[Finished]
    """Blocks of the tensors that the program makes: as they were read by a phase, freed or left."""

    @property
    def memories(self) -> list[Memory]:
        """Block name -> array, for every rank."""
        return [{name: block.array for name, block in held.items()} for held in self.blocks]
