"""How many elements are alive on a rank, instruction by instruction."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from primepar.passes.block_uses import Rank
from primepar.schedule.meaning import Meaning
from primepar.schedule.program import Instruction, Program
from primepar.schedule.program_uses import initial_blocks

Size = Callable[[str], int | None]


def sizes_of(program: Program) -> Size:
    """Elements of a block of the program; None where nothing tells them."""
    meaning, known = Meaning(program), dict[str, int | None]()

    def size(name: str) -> int | None:
        if name not in known:
            known[name] = meaning.elements(name)
        return known[name]

    return size


class LiveBlocks:
    """Blocks that are alive on one rank. What is posted is alive from there on."""

    def __init__(self, size: Size, rank: Rank, initial: Iterable[str]) -> None:
        self._size, self._rank = size, rank
        self._blocks = {name: size(name) or 0 for name in initial}
        self.total = sum(self._blocks.values())

    def do(self, node: Instruction) -> int:
        """Go on by one instruction; how many elements are alive more than before."""
        (_, made, gone), grown = self._rank.touched(node), 0
        for name in gone:
            grown -= self._blocks.pop(name, 0)
        for name in made:
            if name not in self._blocks:
                self._blocks[name] = self._size(name) or 0
                grown += self._blocks[name]
        self.total += grown
        return grown

    def peak(self, nodes: Iterable[Instruction]) -> int:
        """Go on by some instructions; most elements alive at once, before or after any of them."""
        most = self.total
        for node in nodes:
            if self.do(node) > 0:
                most = max(most, self.total)
        return most

    def after(self, node: Instruction) -> int:
        """Elements that would be alive after an instruction that ends nothing."""
        made = self._rank.touched(node).made
        return self.total + sum(self._size(name) or 0 for name in made if name not in self._blocks)


def peaks(program: Program) -> list[int]:
    """Most elements alive at once on every rank; blocks of unknown size count nothing."""
    size, initial = sizes_of(program), initial_blocks(program)
    return [
        LiveBlocks(size, Rank(rank), initial[rank]).peak(nodes)
        for rank, nodes in enumerate(program.programs)
    ]
