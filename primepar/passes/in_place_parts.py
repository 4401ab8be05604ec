"""Removes in-place cuts and joins that are not needed.

The merging passes put joins before a merged instruction and cuts after it. Where two merged
instructions follow each other, the cut of the first and the join of the second cancel. Example:
`cut c -> (a, b); join (a, b) -> c` is removed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from primepar.passes.block_uses import Names, Rank, RankList
from primepar.schedule.program import Cut, Free, Instruction, Join, Program

Edits = dict[int, list[Instruction]]
"""Position -> the instructions that replace the one there; that after the last one has none."""


def edited(nodes: Sequence[Instruction], edits: Edits) -> list[Instruction]:
    """Return the list with some of its instructions replaced, and others after its last one."""
    done = [new for place, node in enumerate(nodes) for new in edits.get(place, (node,))]
    return [*done, *edits.get(len(nodes), ())]


def delay(edits: Edits, nodes: Sequence[Instruction], moved: Mapping[int, int]) -> Edits:
    """Return the edits with some instructions moved behind what replaces another one."""
    for place, after in moved.items():
        edits[place] = []
        edits[after] = [*edits[after], nodes[place]]
    return edits


def rewritten(program: Program, edits: Sequence[Edits]) -> Program:
    """Return the program with instructions of every rank replaced; itself without edits."""
    if not any(edits):
        return program
    lists = zip(program.programs, edits, strict=True)
    return replace(program, programs=tuple(tuple(edited(*pair)) for pair in lists))


def tidied(nodes: list[Instruction], rank: Rank) -> list[Instruction]:
    """Move in-place cuts down to the next use of their parts, and simplify until nothing changes.

    A cut and a join that undo each other are both removed if nothing uses their blocks between
    them. A cut whose parts are all freed next becomes a free. A cut of a part of another cut is
    merged with it, and so are joins.
    """
    parts = {
        name
        for node in nodes
        if isinstance(node, Cut | Join) and node.in_place
        for name in (node.block, *node.blocks)
    }
    # The rules read only instructions that use such blocks, so the others are left out.
    uses = [
        (place, node, used.names)
        for place, (node, used) in enumerate(zip(nodes, RankList(nodes, rank).uses, strict=True))
        if not parts.isdisjoint(used.names)
    ]
    kept = list(_with_late_cuts(uses, len(nodes)))
    # A rule may make room for another: two cuts become one, which then undoes a join. Each removes
    # an instruction, so this ends.
    while simpler := _simpler(RankList([node for _, node in kept], rank)):
        kept = [
            (place, new)
            for number, (place, node) in enumerate(kept)
            for new in simpler.get(number, [node])
        ]
    edits: Edits = {place: [] for place, *_ in uses}
    for place, node in kept:
        edits.setdefault(place, []).append(node)
    return edited(nodes, edits)


def _with_late_cuts(
    uses: Iterable[tuple[int, Instruction, Names]], end: int
) -> Iterator[tuple[int, Instruction]]:
    """Yield instructions with their positions: an in-place cut at the next use of its blocks."""
    held: dict[str, Cut] = {}
    """Block -> the cut that reads or makes it and is not yielded yet."""
    for place, node, names in uses:
        if isinstance(node, Cut) and node.in_place and held.keys().isdisjoint(names):
            # The cut waits for whoever first needs a part: mostly that is the join that undoes it.
            held.update(dict.fromkeys(names, node))
            continue
        for name in names if held else ():
            if name in held:
                cut = held[name]
                for part in (cut.block, *cut.blocks):
                    del held[part]
                yield place, cut
        yield place, node
    for cut in dict.fromkeys(held.values()):
        yield end, cut


def _simpler(line: RankList) -> Edits:
    edits: Edits = {}
    for place, node in enumerate(line.nodes):
        if isinstance(node, Cut | Join) and node.in_place and place not in edits:
            # One rule for each place and round: two at once could remove what the other one relies
            # on.
            for rule in (_freed, _undone, _flat) if type(node) is Cut else (_undone, _flat):
                new_edits = rule(line, place, node)
                if new_edits and new_edits.keys().isdisjoint(edits):
                    edits.update(new_edits)
                    break
    return edits


def _freed(line: RankList, place: int, node: Cut | Join) -> Edits:
    """Replace a cut by a free if all its parts are freed next."""
    edits: Edits = {place: [Free(node.block)]}
    for name in node.blocks:
        use = line.after(name, place)
        if use is None or use in edits or type(line.nodes[use]) is not Free:
            return {}
        edits[use] = []
    return edits


def _undone(line: RankList, place: int, node: Cut | Join) -> Edits:
    """Remove a cut and the join that undoes it, or a join and the cut that undoes it."""
    end = line.after(node.block, place)
    other = None if end is None else line.nodes[end]
    if end is None or not isinstance(other, Cut | Join) or type(other) is type(node):
        return {}
    same = other.in_place and other.block == node.block and {*other.blocks} == {*node.blocks}
    is_next = same and all(line.after(name, place) == end for name in node.blocks)
    return {place: [], end: []} if is_next else {}


def _flat(line: RankList, place: int, node: Cut | Join) -> Edits:
    """Merge a cut with the next cut of one of its parts, or a join with the last join of a part."""
    for part in node.blocks:
        end = line.after(part, place) if isinstance(node, Cut) else line.before(part, place)
        other = None if end is None else line.nodes[end]
        if end is None or type(other) is not type(node) or not isinstance(other, Cut | Join):
            continue
        first, last = sorted((place, end))
        inner = (line.between(name, first, last) for name in (node.block, *other.blocks))
        if other.in_place and other.block == part and not any(inner):
            index = node.blocks.index(part)
            parts = (*node.blocks[:index], *other.blocks, *node.blocks[index + 1 :])
            return {place: [replace(node, blocks=parts)], end: []}
    return {}
