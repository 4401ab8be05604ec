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

from collections.abc import Iterator

from msgspec.structs import replace

from primepar.passes.block_uses import Names, RankList, rank_lists, with_lists
from primepar.schedule.program import Cut, Free, Instruction, Join, Program, Wait


def free_early(program: Program) -> Program:
    """Return the program with every block freed right after its last use."""
    finals = program.final or (None,) * program.ranks
    return with_lists(program, map(_freed, rank_lists(program), finals))


def _freed(line: RankList, final: Names | None) -> Iterator[Instruction]:
    """Yield a rank's list with its frees moved up, and with those that are missing."""
    over: dict[int, list[str]] = {}
    """Position -> the blocks that nothing needs after it; -1 is the start."""
    moved = set[int]()
    # In the order of the program, so that frees at one position have one order on every run.
    for last, end, name in sorted(_lives(line, final), key=lambda life: life[:2]):
        over.setdefault(last, []).append(name)
        moved.add(end)
    yield from map(Free, over.get(-1, ()))
    for place, node in enumerate(line.nodes):
        if type(node) is Free and place in moved:
            continue
        ended = over.get(place, [])
        parts = _copied(node)
        # All parts end here: the join takes their memory over, and there is nothing to free.
        if parts and set(parts) <= set(ended):
            node = replace(node, in_place=True)
            ended = [name for name in ended if name not in parts]
        yield node
        yield from map(Free, ended)


def _lives(line: RankList, final: Names | None) -> Iterator[tuple[int, int, str]]:
    """Yield the last use of every block's data, where that was freed or replaced, and the block.

    A free of a block that does not exist, or is in flight, is wrong, and ends nothing: it stays.
    Example: in `isend a; free a; wait` the free is wrong; in `compute a; compute b += a; recv a`
    the data of `a` ends at the receive, and its last use is before.
    """
    for name in {**line.initial, **dict.fromkeys(line.touches)}:
        last = -1 if name in line.initial else None
        for place in line.touches.get(name, ()):
            used, node = line.uses[place], line.nodes[place]
            # A write that does not read ends the life of older data: `recv a` where there is an a.
            is_new = name in used.made and name not in used.reads and type(node) is not Wait
            ends = (type(node) is Free or is_new) and not line.is_in_flight(name, place)
            if last is not None and ends:
                yield last, place, name
                last = None
            if type(node) is not Free:
                last = None if name in used.gone and name not in used.made else place
        end = len(line.nodes)
        is_kept = final is None or name in final or line.is_in_flight(name, end)
        if last is not None and not is_kept:
            yield last, end, name


def _copied(node: Instruction) -> Names:
    """Return the operands of a cut or join that is not in place."""
    if isinstance(node, Cut | Join) and not node.in_place:
        return (node.block,) if isinstance(node, Cut) else node.blocks
    return ()
