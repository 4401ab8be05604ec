"""Texts of places in error messages: method, device, instruction, phase and step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from primepar.errors import DeadlockError
from primepar.schedule.operators import Dim, Phase
from primepar.schedule.program import Compute, Instruction, Program
from primepar.schedule.sequence import Sequence


class Waiting(NamedTuple):
    """A rank that waits: the position of its instruction, the ranks it waits for, and for what."""

    place: int
    ranks: tuple[int, ...]
    what: str


class ErrorPlaces:
    """Texts of the places of one program, with coordinates and steps if its sequence is known."""

    def __init__(self, program: Program, sequence: Sequence | None) -> None:
        self.program = program
        self.sequence = sequence

    def device(self, rank: int) -> str:
        """Return `P2x2, device 2 (r=1, c=0)`."""
        if self.sequence is None:
            return f"device {rank}"
        method = str(self.sequence)
        return f"{method}, {self.sequence.place(rank)}" if method else f"device {rank}"

    def of(self, rank: int, place: int, instruction: Instruction) -> str:
        """Return `P2x2, device 2 (r=1, c=0), programs[2][5], forward, t=1`."""
        text = f"{self.device(rank)}, programs[{rank}][{place}]"
        if isinstance(instruction, Compute) and instruction.phase is not None:
            text += f", {instruction.phase}"
            step = self._step(rank, instruction.phase, instruction.sub_operator or {})
            text += "" if step is None else f", t={step}"
        return text

    def _step(self, rank: int, phase: Phase, slices: Mapping[Dim, int]) -> int | None:
        """Return the first step at which the map gives this sub-operator to `rank`."""
        if self.sequence is None:
            return None
        for step in range(self.sequence.steps):
            rank_slices = self.sequence.slices(phase, rank, step)
            if all(slices.get(dim) in indices for dim, indices in rank_slices.items()):
                return step
        return None

    def deadlock(self, waiting: Mapping[int, Waiting]) -> DeadlockError:
        """Return the error of a deadlock.

        It lists which rank waits for which one, from the lowest waiting rank until one repeats.
        """
        chain = [min(waiting)]
        while chain[-1] in waiting:
            chain.append(waiting[chain[-1]].ranks[0])
            if chain[-1] in chain[:-1]:
                break
        links = [
            f"device {rank} at programs[{rank}][{waiting[rank].place}] waits for "
            f"{waiting[rank].what}"
            for rank in chain[:-1]
        ]
        if chain[-1] not in waiting:
            links.append(f"device {chain[-1]} has finished")
        others = len(waiting) - len(chain) + 1
        more = f" (and {others} more wait)" if others else ""
        method = f"{self.sequence}: " if self.sequence and str(self.sequence) else ""
        return DeadlockError(
            f"{method}expected every device to end, got {len(waiting)} that wait without end: "
            f"{'; '.join(links)}{more}"
        )
