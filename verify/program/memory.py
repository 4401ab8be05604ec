"""Memory: how many elements are alive on each rank, by its own instructions alone.

A block is alive from where it appears: at the start, where it is computed, made, cut or joined, and
where a message or collective that brings it is posted, since its buffer is there from then on. It
goes where it is freed or evicted, or where another takes its memory in place. Nothing of this
depends on the order of events between ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from primepar.schedule.meaning import Meaning
from primepar.schedule.program import (
    Compute,
    Cut,
    Evict,
    Fetch,
    Free,
    Group,
    Instruction,
    IRecv,
    ISend,
    Join,
    Program,
    Recv,
    Send,
)
from primepar.schedule.program_file import instruction_line
from primepar.schedule.signature import Bound
from primepar.verify.deadline import UnansweredError, in_time
from primepar.verify.program.races import touched

MOST_NAMED = 4


def elements(meaning: Meaning, block: str) -> int:
    """Elements of a block. Raises `UnansweredError` where the program does not tell."""
    size = meaning.elements(block)
    if size is None:
        raise UnansweredError(
            f"the elements of {block} are not known: give the shape of the operator, "
            "or the cuts of its tensor in tensors"
        )
    return size


def needs(instruction: Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that must be there before; a sum that starts at zero need not."""
    match instruction:
        case Compute(reads=reads):
            return reads
        case Send(block=block) | ISend(block=block) | Free(block=block) | Evict(block=block):
            return (block,)
        case Group(body=body):
            return tuple(block for message in body for block in needs(message, rank))
        case _:
            return touched(instruction, rank).reads


def brings(instruction: Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that are alive after an instruction, if they were not before."""
    match instruction:
        case Free() | Evict():
            return ()
        case Recv(block=block) | IRecv(block=block) | Join(block=block):
            return (block,)
        case Cut(blocks=blocks):
            return blocks
        case Group(body=body):
            return tuple(block for message in body for block in brings(message, rank))
        case _:
            return touched(instruction, rank).writes


Held = dict[str, int | None]
"""Block -> its elements; None where the program does not tell."""


class LiveElements(NamedTuple):
    """What is alive on a rank after an instruction; before the first one, `at` is -1."""

    at: int
    device: Held
    host: Held


@dataclass(frozen=True)
class Memory:
    """The memory of every rank, followed through its instructions."""

    meaning: Meaning

    @property
    def program(self) -> Program:
        """The program."""
        return self.meaning.program

    def over(self) -> str | None:
        """The first instruction of the first rank that goes over a bound; None if none does."""
        bound = self.program.memory or Bound()
        for rank in range(self.program.ranks):
            for alive in self.follow(rank):
                for where, held, limit in (
                    ("device", alive.device, bound.device),
                    ("host", alive.host, bound.host),
                ):
                    if limit is not None and self._total(held) > limit:
                        return self._sentence(rank, alive.at, where, held, limit)
        return None

    def note(self) -> str:
        """Most elements alive on any rank, and how often each tensor is there at rest."""
        bound = self.program.memory or Bound()
        limits: tuple[tuple[Literal["device", "host"], int | None], ...] = (
            ("device", bound.device), ("host", bound.host),
        )  # fmt: skip
        parts = [
            f"at most {max(self.peaks(where))} of {limit} elements alive in {where} memory"
            for where, limit in limits
            if limit is not None
        ]
        copies = [f"{tensor} {count}" for tensor, count in self.copies().items()]
        return "; ".join([*parts, *(["copies at rest: " + ", ".join(copies)] if copies else [])])

    def peaks(self, where: Literal["device", "host"]) -> list[int]:
        """Most elements alive at once on every rank. Raises `UnansweredError` if not told."""
        return [
            max(self._total(getattr(alive, where)) for alive in self.follow(rank))
            for rank in range(self.program.ranks)
        ]

    def copies(self) -> dict[str, Fraction]:
        """Tensor -> how often its elements are in `initial`, over all ranks, where it is told."""
        held: dict[str, list[str]] = {}
        for block in (block for blocks in self.program.initial or () for block in blocks):
            found = self.meaning.place(block)
            if found is not None:
                held.setdefault(found.tensor, []).append(block)
        return {
            tensor: Fraction(
                sum(elements(self.meaning, block) for block in blocks),
                sum(elements(self.meaning, block) for block in set(blocks)),
            )
            for tensor, blocks in held.items()
            if all(self.meaning.elements(block) is not None for block in blocks)
        }

    def follow(self, rank: int) -> Iterator[LiveElements]:
        """What is alive before the first instruction of a rank, and after each that changes it."""
        instructions = self.program.programs[rank]
        here, there = self._start(rank)
        device, host = self._sized(here), self._sized(there)
        yield LiveElements(-1, device, host)
        for index, instruction in enumerate(in_time(instructions)):
            match instruction:
                case Free(block=block):
                    device.pop(block, None)
                    continue
                case Evict(block=block):
                    host.update(self._sized([block]))
                    device.pop(block, None)
                case Fetch(block=block):
                    host.pop(block, None)
                    device.update(self._sized([block]))
                case Cut(block=block, blocks=made, in_place=True):
                    device.pop(block, None)
                    device.update(self._sized(list(made)))
                case Join(block=block, blocks=parts, in_place=True):
                    for part in parts:
                        device.pop(part, None)
                    device.update(self._sized([block]))
                case _:
                    new = [block for block in brings(instruction, rank) if block not in device]
                    if not new:
                        continue
                    device.update(self._sized(new))
            yield LiveElements(index, device, host)

    def _start(self, rank: int) -> tuple[list[str], list[str]]:
        """Blocks on the device and on the host: as told, or those that are used before written."""
        if self.program.initial is not None:
            return list(self.program.initial[rank]), []
        known: set[str] = set()
        device, host = [], []
        for instruction in in_time(self.program.programs[rank]):
            if isinstance(instruction, Fetch) and instruction.block not in known:
                host.append(instruction.block)
            used = dict.fromkeys(needs(instruction, rank))
            device += [block for block in used if block not in known]
            known.update(used, brings(instruction, rank))
        return device, host

    def _sized(self, blocks: list[str]) -> Held:
        return {block: self.meaning.elements(block) for block in blocks}

    def _total(self, held: Held) -> int:
        """Elements of some blocks together. Raises `UnansweredError` if one is not known."""
        return sum(elements(self.meaning, b) if n is None else n for b, n in held.items())

    def _sentence(self, rank: int, index: int, where: str, held: Held, limit: int) -> str:
        place = f"rank {rank}, before its first instruction"
        if index >= 0:
            node = self.program.programs[rank][index]
            place = f"rank {rank}, instruction {index} ({instruction_line(node)})"
        return (
            f"{place}: expected at most {limit} elements alive in {where} memory, got "
            f"{self._total(held)}: {largest(held)}: free one before, or allow more in memory"
        )


def largest(held: Held) -> str:
    """The largest blocks with their elements, `W[0,0] 8, I[0,1] 4 and 3 more`."""
    order = sorted(held, key=lambda block: (-(held[block] or 0), block))
    more = f" and {len(order) - MOST_NAMED} more" if len(order) > MOST_NAMED else ""
    return ", ".join(f"{block} {held[block]}" for block in order[:MOST_NAMED]) + more
