"""Frees every block right after its last use.

A block is freed after its last use; if a message uses it last, after the wait. It can be freed if
it is made again before the next read, or if it is not used again and `final` does not list it.
Later frees are moved up. A cut or join that is the last use of its operands is done in place
instead.

Why it is correct: from the last use to the old free (or the next write, or the end of the program)
no instruction uses the block, and a free changes no other block. Without `final` any block may be
needed at the end, so only existing frees are moved.

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
    """Return the program with every block freed right after its last use."""
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
    done: list[Instruction] = [Free(block) for block in ends.ends_after.get(-1, ())]
    for place, node in enumerate(nodes):
        if type(node) is Free and place not in ends.wrong:
            continue
        over = ends.ends_after.get(place, [])
        parts = _copied(node)
        if parts and set(parts) <= set(over):
            node = replace(node, in_place=True)
            over = [name for name in over if name not in parts]
        done.append(node)
        done += map(Free, over)
    return tuple(done)


def _copied(node: Instruction) -> Names:
    """Return the operands of a cut or join that is not in place."""
    if isinstance(node, Cut | Join) and not node.in_place:
        return (node.block,) if isinstance(node, Cut) else node.blocks
    return ()


class _Ends:
    """The end of every block's life.

    `ends_after` maps a position to the blocks that are not needed after that instruction; position
    -1 is the start. The list is followed once. For every live block the position of its last use so
    far is stored; when the block is freed, made again or the list ends, that position is its end.
    """

    def __init__(
        self, nodes: tuple[Instruction, ...], rank: int, initial: Names, final: Names | None
    ) -> None:
        self.ends_after: dict[int, list[str]] = {}
        self.wrong: set[int] = set()
        """Positions of frees of blocks that do not exist or are in flight; they are not moved."""
        self._last = dict.fromkeys(initial, -1)
        """Live block -> position of its last use so far."""
        self._in_flight = Counter[str]()
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
        for name in () if final is None else [name for name in self._last if name not in kept]:
            self._end(name)

    def _follow(self, place: int, node: Instruction, used: UsedBlocks) -> None:
        for name in used.made:
            if name not in used.reads:
                self._end(name)  # the block is made again
        request = request_of(node)
        if request is not None:
            self._posted[request] = used
        self._use(place, used, 0 if request is None else 1)
        for name in used.gone:
            if name not in used.made:
                del self._last[name]

    def _use(self, place: int, used: UsedBlocks, posts: int) -> None:
        for name in dict.fromkeys(used.reads + used.made):
            self._last[name] = place
            if posts:
                self._in_flight[name] += posts

    def _end(self, name: str) -> bool:
        """Free a block after its last use; False if it does not exist or is in flight."""
        if self._in_flight[name] or name not in self._last:
            return False
        self.ends_after.setdefault(self._last.pop(name), []).append(name)
        return True
