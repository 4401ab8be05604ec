"""How messages name a place: method, device, instruction, phase and step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from primepar.errors import DeadlockError
from primepar.schedule.operators import Dim, Phase
from primepar.schedule.program import Compute, Instruction, Program
from primepar.schedule.sequence import Sequence


class Waiting(NamedTuple):
    """Why a rank cannot go on: the instruction, the ranks that it waits for, and for what."""

    at: int
    on: tuple[int, ...]
    what: str


class ErrorPlaces:
    """Names of the places of one program, with coordinates and steps if its sequence is known."""

    def __init__(self, program: Program, sequence: Sequence | None) -> None:
        self.program = program
        self.sequence = sequence

    def device(self, rank: int) -> str:
        """`P2x2, device 2 (r=1, c=0)`."""
        if self.sequence is None:
            return f"device {rank}"
        method = str(self.sequence)
        return f"{method}, {self.sequence.place(rank)}" if method else f"device {rank}"

    def of(self, rank: int, at: int, instruction: Instruction) -> str:
        """`P2x2, device 2 (r=1, c=0), programs[2][5], forward, t=1`."""
        place = f"{self.device(rank)}, programs[{rank}][{at}]"
        if isinstance(instruction, Compute) and instruction.phase is not None:
            place += f", {instruction.phase}"
            step = self._step(rank, instruction.phase, instruction.sub_operator or {})
            place += "" if step is None else f", t={step}"
        return place

    def _step(self, rank: int, phase: Phase, slices: Mapping[Dim, int]) -> int | None:
        """First step at which the map gives this sub-operator to `rank`."""
        if self.sequence is None:
            return None
        for step in range(self.sequence.steps):
            own = self.sequence.slices(phase, rank, step)
            if all(slices.get(dim) in indices for dim, indices in own.items()):
                return step
        return None

    def deadlock(self, waiting: Mapping[int, Waiting]) -> DeadlockError:
        """Error that follows who waits for whom, from the first waiting rank until it repeats."""
        chain = [min(waiting)]
        while chain[-1] in waiting:
            chain.append(waiting[chain[-1]].on[0])
            if chain[-1] in chain[:-1]:
                break
        links = [
            f"device {rank} at programs[{rank}][{waiting[rank].at}] waits for {waiting[rank].what}"
            for rank in chain[:-1]
        ]
        if chain[-1] not in waiting:
            links.append(f"device {chain[-1]} is through")
        others = len(waiting) - len(chain) + 1
        more = f" (and {others} more wait)" if others else ""
        method = f"{self.sequence}: " if self.sequence and str(self.sequence) else ""
        return DeadlockError(
            f"{method}expected every device to end, got {len(waiting)} that wait for ever: "
            f"{'; '.join(links)}{more}"
        )
