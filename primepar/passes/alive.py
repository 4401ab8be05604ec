"""How many elements are alive on a rank, instruction by instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from primepar.schedule.meaning import Meaning
from primepar.schedule.program import Instruction, Program
from primepar.schedule.program_uses import frees, initial_blocks, writes

Size = Callable[[str], int | None]


def sizes_of(program: Program) -> Size:
    """Elements of a block of the program; None where nothing tells them."""
    meaning, known = Meaning(program), dict[str, int | None]()

    def size(name: str) -> int | None:
        if name not in known:
            known[name] = meaning.elements(name)
        return known[name]

    return size


class Alive:
    """Blocks that are alive on one rank. What is posted is alive from there on."""

    def __init__(self, size: Size, rank: int, initial: Iterable[str]) -> None:
        self._size, self._rank = size, rank
        self._blocks = {name: size(name) or 0 for name in initial}
        self.total = sum(self._blocks.values())

    def grows(self, node: Instruction) -> int:
        """Elements that an instruction adds, less those that it ends."""
        gone = frees(node)
        new = [
            name for name in writes(node, self._rank) if name not in self._blocks or name in gone
        ]
        given = sum(self._blocks.get(name, 0) for name in gone)
        return sum(self._size(name) or 0 for name in dict.fromkeys(new)) - given

    def do(self, node: Instruction) -> None:
        """Go on by one instruction."""
        self.total += self.grows(node)
        for name in frees(node):
            self._blocks.pop(name, None)
        for name in writes(node, self._rank):
            self._blocks.setdefault(name, self._size(name) or 0)


def peaks(program: Program) -> list[int]:
    """Most elements alive at once on every rank; blocks of unknown size count nothing."""
    size, found = sizes_of(program), []
    for rank, (nodes, initial) in enumerate(
        zip(program.programs, initial_blocks(program), strict=True)
    ):
        alive = Alive(size, rank, initial)
        most = alive.total
        for node in nodes:
            alive.do(node)
            most = max(most, alive.total)
        found.append(most)
    return found
