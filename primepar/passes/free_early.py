"""Frees right after the last use.

A block is freed after the instruction that uses it last: after the wait, where a message uses it.
It goes where nothing reads it before it is made anew, and at the end unless `final` lists it.
Frees that come later are moved up. A cut, or a join, that is the last use of what it reads, is
done in place instead.

Why it is right: between the last use and the place where the block was freed before, made anew or
forgotten at the end, no instruction touches it; a free there changes no other block. Without
`final` every block may be wanted at the end, so there only frees that are there are moved.

    compute  y += x * w          compute  y += x * w
    compute  z += y              free     x
    free     x              ->   compute  z += y
                                 free     y
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from primepar.passes.block_uses import NOTHING, Names, Rank, UsedBlocks, request_of
from primepar.schedule.program import Cut, Free, Instruction, Join, Program, Wait
from primepar.schedule.program_uses import initial_blocks


def free_early(program: Program) -> Program:
    """Every block freed right after its last use."""
    finals = program.final or (None,) * program.ranks
    lists = zip(program.programs, initial_blocks(program), finals, strict=True)
    freed = tuple(
        _freed(nodes, rank, initial, final) for rank, (nodes, initial, final) in enumerate(lists)
    )
    return program if freed == program.programs else replace(program, programs=freed)


def _freed(
    nodes: tuple[Instruction, ...], rank: int, initial: Names, final: Names | None
) -> tuple[Instruction, ...]:
    ends = _Ends(nodes, rank, initial, final)
    done: list[Instruction] = [Free(block) for block in ends.at.get(-1, ())]
    for place, node in enumerate(nodes):
        if type(node) is Free and place not in ends.wrong:
            continue
        over = ends.at.get(place, [])
        parts = _copied(node)
        if parts and set(parts) <= set(over):
            node = replace(node, in_place=True)
            over = [name for name in over if name not in parts]
        done.append(node)
        done += map(Free, over)
    return tuple(done)


def _copied(node: Instruction) -> Names:
    """What a cut or a join copies."""
    if isinstance(node, Cut | Join) and not node.in_place:
        return (node.block,) if isinstance(node, Cut) else node.blocks
    return ()


class _Ends:
    """`at` has the blocks that nothing needs after an instruction, the start being -1."""

    def __init__(
        self, nodes: tuple[Instruction, ...], rank: int, initial: Names, final: Names | None
    ) -> None:
        self.at: dict[int, list[str]] = {}
        self.wrong: set[int] = set()
        """Frees of what is not there or in flight, which stay as they are."""
        self._last = dict.fromkeys(initial, -1)
        """Of every block that is there, where it is used last so far."""
        self._flying = Counter[str]()
        self._posted: dict[str, UsedBlocks] = {}
        known = Rank(rank)
        for place, node in enumerate(nodes):
            if type(node) is Free:
                self.wrong |= set() if self._end(node.block) else {place}
            elif type(node) is Wait:
                self._use(place, self._posted.pop(node.request, NOTHING), -1)
            else:
                self._follow(place, node, known.touched(node))
        kept = set(final or ())
        for name in () if final is None else [each for each in self._last if each not in kept]:
            self._end(name)

    def _follow(self, place: int, node: Instruction, own: UsedBlocks) -> None:
        for name in own.made:
            if name not in own.reads:
                self._end(name)  # it is made anew
        request = request_of(node)
        if request is not None:
            self._posted[request] = own
        self._use(place, own, 0 if request is None else 1)
        for name in own.gone:
            if name not in own.made:
                del self._last[name]

    def _use(self, place: int, own: UsedBlocks, posts: int) -> None:
        for name in dict.fromkeys(own.reads + own.made):
            self._last[name] = place
            if posts:
                self._flying[name] += posts

    def _end(self, name: str) -> bool:
        """Free a block after its last use; False where there is none, or it is in flight."""
        if self._flying[name] or name not in self._last:
            return False
        self.at.setdefault(self._last.pop(name), []).append(name)
        return True
