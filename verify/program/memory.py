"""Memory: how many elements are live on each rank, by its own instructions alone.

A block is live from the instruction at which it appears. That is the start, a product, an
allocation, a cut or a join. A received block is live from the post on, since its buffer is in use
from then on. It is live until it is freed or evicted, or until another block takes its memory in
place. This does not depend on the order of events between ranks. For example, `irecv X`, `free Y`,
`wait` has X and Y live together for one instruction.
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
from primepar.schedule.program_uses import host_blocks
from primepar.schedule.signature import Bound
from primepar.verify.deadline import UnansweredError, in_time
from primepar.verify.program.races import touched

MOST_NAMED = 4


def elements(meaning: Meaning, block: str) -> int:
    """Elements of a block. Raises `UnansweredError` where the program does not define them."""
    size = meaning.elements(block)
    if size is None:
        raise UnansweredError(
            f"the elements of {block} are not known: give the shape of the operator, "
            "or the cuts of its tensor in tensors"
        )
    return size


def needs(instruction: Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that must be live before an instruction; a sum that starts at zero need not."""
    match instruction:
        case Compute(reads=reads):
            return reads
        case Send(block=block) | ISend(block=block) | Free(block=block) | Evict(block=block):
            return (block,)
        case Group(body=body):
            return tuple(block for message in body for block in needs(message, rank))
        case _:
            return touched(instruction, rank).reads


def allocates(instruction: Instruction, rank: int) -> tuple[str, ...]:
    """Blocks that are live after an instruction, even if they were not before."""
    match instruction:
        case Free() | Evict():
            return ()
        case Recv(block=block) | IRecv(block=block) | Join(block=block):
            return (block,)
        case Cut(blocks=blocks):
            return blocks
        case Group(body=body):
            return tuple(block for message in body for block in allocates(message, rank))
        case _:
            return touched(instruction, rank).writes


Held = dict[str, int | None]
"""Block -> its elements; None where the program does not define them."""


class LiveElements(NamedTuple):
    """Live blocks of a rank after an instruction; `instruction` is -1 before the first one."""

    instruction: int
    device: Held
    host: Held


@dataclass(frozen=True)
class Memory:
    """The live blocks of every rank, instruction by instruction."""

    meaning: Meaning

    @property
    def program(self) -> Program:
        """The program."""
        return self.meaning.program

    def over(self) -> str | None:
        """The first instruction of the first rank that exceeds a bound; None if none does."""
        bound = self.program.memory or Bound()
        for rank in range(self.program.ranks):
            for live in self.follow(rank):
                for where, held, limit in (
                    ("device", live.device, bound.device),
                    ("host", live.host, bound.host),
                ):
                    if limit is not None and self._total(held) > limit:
                        return self._sentence(rank, live.instruction, where, held, limit)
        return None

    def note(self) -> str:
        """Largest number of live elements on a rank, and copies of each tensor in `initial`."""
        bound = self.program.memory or Bound()
        limits: tuple[tuple[Literal["device", "host"], int | None], ...] = (
            ("device", bound.device), ("host", bound.host),
        )  # fmt: skip
        parts = [
            f"at most {max(self.peaks(where))} of {limit} live elements in {where} memory"
            for where, limit in limits
            if limit is not None
        ]
        copies = [f"{tensor} {count}" for tensor, count in self.copies().items()]
        return "; ".join([*parts, *(["resident copies: " + ", ".join(copies)] if copies else [])])

    def peaks(self, where: Literal["device", "host"]) -> list[int]:
        """Peak of live elements on each rank. Raises `UnansweredError` if a size is not defined."""
        return [
            max(self._total(getattr(live, where)) for live in self.follow(rank))
            for rank in range(self.program.ranks)
        ]

    def copies(self) -> dict[str, Fraction]:
        """Tensor -> copies of its elements in `initial` over all ranks, where sizes are defined."""
        held: dict[str, list[str]] = {}
        for block in (block for blocks in self.program.initial or () for block in blocks):
            place = self.meaning.place(block)
            if place is not None:
                held.setdefault(place.tensor, []).append(block)
        return {
            tensor: Fraction(
                sum(elements(self.meaning, block) for block in blocks),
                sum(elements(self.meaning, block) for block in set(blocks)),
            )
            for tensor, blocks in held.items()
            if all(self.meaning.elements(block) is not None for block in blocks)
        }

    def follow(self, rank: int) -> Iterator[LiveElements]:
        """Yield the live blocks before the first instruction of a rank and after each change."""
        instructions = self.program.programs[rank]
        initial_device, initial_host = self._start(rank)
        device, host = self._sized(initial_device), self._sized(initial_host)
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
                case Cut(block=block, blocks=pieces, in_place=True):
                    device.pop(block, None)
                    device.update(self._sized(list(pieces)))
                case Join(block=block, blocks=parts, in_place=True):
                    for part in parts:
                        device.pop(part, None)
                    device.update(self._sized([block]))
                case _:
                    new = [block for block in allocates(instruction, rank) if block not in device]
                    if not new:
                        continue
                    device.update(self._sized(new))
            yield LiveElements(index, device, host)

    def _start(self, rank: int) -> tuple[list[str], list[str]]:
        """Initial blocks on device and host: as `initial` lists, or those used before written."""
        if self.program.initial is not None:
            return list(self.program.initial[rank]), list(host_blocks(self.program)[rank])
        known: set[str] = set()
        device, host = [], []
        for instruction in in_time(self.program.programs[rank]):
            if isinstance(instruction, Fetch) and instruction.block not in known:
                host.append(instruction.block)
            used = dict.fromkeys(needs(instruction, rank))
            device += [block for block in used if block not in known]
            known.update(used, allocates(instruction, rank))
        return device, host

    def _sized(self, blocks: list[str]) -> Held:
        return {block: self.meaning.elements(block) for block in blocks}

    def _total(self, held: Held) -> int:
        """Sum of the elements of blocks. Raises `UnansweredError` if a size is not defined."""
        return sum(elements(self.meaning, b) if n is None else n for b, n in held.items())

    def _sentence(self, rank: int, index: int, where: str, held: Held, limit: int) -> str:
        place = f"rank {rank}, before its first instruction"
        if index >= 0:
            node = self.program.programs[rank][index]
            place = f"rank {rank}, instruction {index} ({instruction_line(node)})"
        return (
            f"{place}: expected at most {limit} live elements in {where} memory, got "
            f"{self._total(held)}: {largest(held)}: free one before, or allow more in memory"
        )


def largest(held: Held) -> str:
    """The largest blocks with their elements, `W[0,0] 8, I[0,1] 4 and 3 more`."""
    order = sorted(held, key=lambda block: (-(held[block] or 0), block))
    more = f" and {len(order) - MOST_NAMED} more" if len(order) > MOST_NAMED else ""
    return ", ".join(f"{block} {held[block]}" for block in order[:MOST_NAMED]) + more
