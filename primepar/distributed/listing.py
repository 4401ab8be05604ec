"""One rank's instruction list while it is compiled."""

from __future__ import annotations

from fractions import Fraction

from primepar.distributed.mesh import Mesh
from primepar.distributed.storage import Memory, Storage
from primepar.errors import ProgramError
from primepar.schedule.program import Program


class Listing:
    """The list, where its blocks lie at the place that is compiled, and what it sends so far."""

    def __init__(self, mesh: Mesh, program: Program, memory: Memory) -> None:
        self.mesh, self.rank, self.memory = mesh, mesh.rank, memory
        self.instructions = program.programs[mesh.rank]
        self.assumed = program.initial is None
        self.initial = program.initial[mesh.rank] if program.initial is not None else ()
        self.storage = Storage(memory, self.instructions)
        self.sent = Fraction(0)
        self.done: set[int] = set()
        """Places of instructions that were done together with an earlier one."""

    def need(self, name: str, place: int | None = None) -> None:
        """The block is there, or `ProgramError`."""
        here = self.storage.here
        if name not in here and self.assumed:
            here[name] = name in self.memory.borrowed
        if name not in here:
            raise ProgramError(
                f"{self.at(place)}: expected block {name} on this device, "
                "got none: list it in initial, or receive or compute it first"
            )

    def at(self, place: int | None = None) -> str:
        """How messages name a place, by default the one that is compiled."""
        return f"programs[{self.rank}][{self.storage.place if place is None else place}]"
