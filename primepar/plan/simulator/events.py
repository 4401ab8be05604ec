"""The events of a program on one rank: what is live after each instruction, and what it sends.

This is the one stream that is counted. The sum of what is sent is the traffic of a rank, the
maximum of what is live its memory. The simulator reads the same instructions with their times.
A block is live from the instruction that makes it, or the post of its receive, to the one that
frees it.

Example, of a rank that starts with x and w, 4 bytes each:

    isend    x -> 1              sent 4   live 8
    compute  y += x * w          sent 0   live 12
    free     x                   sent 0   live 8
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from primepar.errors import ProgramError
from primepar.passes.block_uses import Rank
from primepar.plan.cluster import BYTES
from primepar.schedule.effects import initial_blocks
from primepar.schedule.meaning import meaning_of
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Broadcast,
    Group,
    Instruction,
    ISend,
    Program,
    Reduce,
    ReduceScatter,
    Send,
)

Size = Callable[[str], int]
"""Bytes of a block."""


class BlockBytes:
    """Elements and bytes of the blocks of a program in a data type.

    A block of a wide tensor has elements of float32 at least.
    """

    def __init__(self, program: Program, dtype: str) -> None:
        self._item, self._tensors = BYTES[dtype], program.tensors or {}
        self._meaning = meaning_of(program)
        self._elements: dict[str, int] = {}
        self._bytes: dict[str, int] = {}

    def elements(self, block: str) -> int:
        """Elements of a block. Raises `ProgramError` where the program does not define them."""
        elements = self._elements.get(block)
        if elements is None:
            elements = self._meaning.elements(block)
            if elements is None:
                raise ProgramError(
                    f"expected the elements of {block}, which its time depends on, got none: write "
                    "the shape of the operator, or the cuts of its tensor in tensors"
                )
            self._elements[block] = elements
        return elements

    def item(self, block: str) -> int:
        """Bytes of an element of a block."""
        tensor = self._tensors.get(block.rstrip("'").rpartition("[")[0])
        wide = tensor is not None and tensor.wide
        return max(self._item, BYTES["float32"]) if wide else self._item

    def __call__(self, block: str) -> int:
        """Bytes of a block. Raises what `elements` raises."""
        size = self._bytes.get(block)
        if size is None:
            size = self._bytes[block] = self.elements(block) * self.item(block)
        return size


def live_bytes(program: Program, rank: int, size: Size) -> Iterator[int]:
    """Yield what is live on a rank at the start and after each instruction."""
    live = 0
    for _, changes in live_changes(program, rank, size):
        live += sum(grown for _, grown in changes)
        yield live


def live_changes(
    program: Program, rank: int, size: Size
) -> Iterator[tuple[Instruction | None, list[tuple[str, int]]]]:
    """Yield each instruction of a rank with the blocks that come and go there, and their bytes.

    Bytes of blocks that go are negative. The start of the program comes first, without instruction.
    """
    blocks = {block: size(block) for block in initial_blocks(program)[rank]}
    touched = Rank(rank).touched
    yield None, list(blocks.items())
    for node in program.programs[rank]:
        used = touched(node)
        changes = [(block, -blocks.pop(block)) for block in used.gone if block in blocks]
        for block in used.made:
            if block not in blocks:
                blocks[block] = size(block)
                changes.append((block, blocks[block]))
        yield node, changes


def sent(node: Instruction, rank: int, size: Size) -> Fraction | int:
    """Bytes that leave a rank for an instruction.

    An all-reduce, an all-gather and a reduce-scatter are rings. A broadcast and a reduce are chains
    in the order of the group, from or to the root: all but the last rank of the chain send.
    """
    match node:
        case Send() | ISend():
            return size(node.block)
        case Group(body=body):
            return sum(sent(message, rank, size) for message in body)
        case AllReduce(group=group):
            return Fraction(2 * (len(group) - 1) * sum(map(size, node.reduced)), len(group))
        case ReduceScatter(group=group, blocks=blocks):
            return Fraction((len(group) - 1) * sum(map(size, blocks)), len(group))
        case AllGather(group=group, block=block):
            return (len(group) - 1) * size(block)
        case AllToAll(group=group, blocks=blocks):
            pairs = zip(group, blocks, strict=True)
            return sum(size(block) for member, block in pairs if member != rank)
        case Broadcast(group=group, block=block, root=root):
            is_last = group[group.index(root) - 1] == rank
            return 0 if is_last else size(block)
        case Reduce(block=block, root=root):
            return 0 if rank == root else size(block)
        case _:
            return 0
