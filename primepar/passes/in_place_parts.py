"""Blocks joined and cut in place around one instruction, and what of that can be left out."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from primepar.passes.block_uses import Rank, RankList, followed
from primepar.schedule.program import Cut, Free, Instruction, Join

Edits = dict[int, list[Instruction]]
"""Place -> what stands there instead."""


def edited(nodes: Sequence[Instruction], edits: Edits) -> list[Instruction]:
    """The list with some of its instructions replaced."""
    done: list[Instruction] = []
    for place, node in enumerate(nodes):
        if place in edits:
            done += edits[place]
        else:
            done.append(node)
    return done


def tidied(nodes: list[Instruction], rank: Rank) -> list[Instruction]:
    """Cuts in place just before their parts are touched, and none that is of no use.

    Of two cuts and joins that undo each other both go, where nothing touches their blocks between
    them. A cut whose parts are all freed next is a free. A part that is cut, or joined, again goes
    with the other cut or join.
    """
    nodes = _sunk(nodes, rank)
    # The rules read only instructions that touch such blocks, so the others are left out.
    places = _places_of_parts(nodes, rank)
    kept = [(place, nodes[place]) for place in places]
    while simpler := _simpler(RankList([node for _, node in kept], rank)):
        kept = [
            (place, new) for at, (place, node) in enumerate(kept) for new in simpler.get(at, [node])
        ]
    edits: Edits = {place: [] for place in places}
    for place, node in kept:
        edits[place].append(node)
    return edited(nodes, edits)


def _places_of_parts(nodes: list[Instruction], rank: Rank) -> list[int]:
    """Where a block is touched that is cut or joined in place."""
    parts = {
        name
        for node in nodes
        if isinstance(node, Cut | Join) and node.in_place
        for name in (node.block, *node.blocks)
    }
    return [
        place
        for place, (_, own) in enumerate(followed(nodes, rank))
        if not parts.isdisjoint(own.reads + own.made + own.gone)
    ]


def _sunk(nodes: list[Instruction], rank: Rank) -> list[Instruction]:
    """The list with every cut in place where something touches its blocks next."""
    done: list[Instruction] = []
    held: dict[str, Cut] = {}
    """Block -> the cut that takes or makes it, and has not been done yet."""

    def do(cut: Cut) -> None:
        for name in (cut.block, *cut.blocks):
            del held[name]
        done.append(cut)

    for node, own in followed(nodes, rank):
        names = own.reads + own.made + own.gone
        if isinstance(node, Cut) and node.in_place and held.keys().isdisjoint(names):
            held.update(dict.fromkeys(names, node))
            continue
        for name in names if held else ():
            if name in held:
                do(held[name])
        done.append(node)
    return [*done, *dict.fromkeys(held.values())]


def _simpler(line: RankList) -> Edits:
    edits: Edits = {}
    for place, node in enumerate(line.nodes):
        if isinstance(node, Cut | Join) and node.in_place and place not in edits:
            for rule in (_freed, _undone, _flat):
                found = rule(line, place, node)
                if found and found.keys().isdisjoint(edits):
                    edits.update(found)
                    break
    return edits


def _freed(line: RankList, place: int, node: Cut | Join) -> Edits:
    """A cut all of whose parts are freed next."""
    nexts = [line.after(name, place) for name in node.blocks]
    ends = [at for at in nexts if at is not None and type(line.nodes[at]) is Free]
    if isinstance(node, Join) or len(set(ends)) < len(node.blocks):
        return {}
    return {place: [Free(node.block)], **{at: [] for at in ends}}


def _undone(line: RankList, place: int, node: Cut | Join) -> Edits:
    """A cut with the join that undoes it, or the other way round."""
    ends = {line.after(name, place) for name in (node.block, *node.blocks)}
    end = ends.pop()
    other = None if ends or end is None else line.nodes[end]
    if end is None or not isinstance(other, Cut | Join) or not other.in_place:
        return {}
    same = other.block == node.block and {*other.blocks} == {*node.blocks}
    return {place: [], end: []} if same and type(other) is not type(node) else {}


def _flat(line: RankList, place: int, node: Cut | Join) -> Edits:
    """A cut one of whose parts is cut next, or a join one of whose parts was joined last."""
    for part in node.blocks:
        end = line.after(part, place) if isinstance(node, Cut) else line.before(part, place)
        other = None if end is None else line.nodes[end]
        if end is None or type(other) is not type(node) or not isinstance(other, Cut | Join):
            continue
        first, last = sorted((place, end))
        inner = (line.between(name, first, last) for name in (node.block, *other.blocks))
        if other.in_place and other.block == part and not any(inner):
            at = node.blocks.index(part)
            parts = (*node.blocks[:at], *other.blocks, *node.blocks[at + 1 :])
            return {place: [replace(node, blocks=parts)], end: []}
    return {}
