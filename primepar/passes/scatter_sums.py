"""Reduces to each rank only the part of a sum that it uses.

After an all-reduce every member has the whole sum. Where each of them then cuts it and uses one
part alone, another one on every member, a reduce-scatter of the parts sends half as much. Where the
parts differ in size, or a member uses none, each part is reduced to the one that uses it.

    all_reduce  g over 0,1                 cut             g -> g.own[0] g.own[1]
    ...                                    reduce_scatter  g.own[0] g.own[1] -> g.own[0]
    cut         g -> g.own[0] g.own[1] ->  ...
    compute     new += old * g.own[0]      compute         new += old * g.own[0]

Why it is correct: a reduction adds element by element, so a part of the sum is the sum of the
parts. No member uses the whole between the all-reduce and its cut, nor another part afterwards. The
new calls are at the place of the all-reduce on every member, so no rank waits where it did not
before.

The gradients of a sharded optimizer are the usual case (Rajbhandari et al., arXiv 1910.02054). XLA
has the same pass, as its reduce-scatter-creator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from primepar.passes.block_uses import Rank, RankList
from primepar.passes.in_place_parts import Edits, edited
from primepar.passes.liveness import Size, sizes_of
from primepar.schedule.program import (
    AllReduce,
    Collective,
    Cut,
    Free,
    Instruction,
    Program,
    Reduce,
    ReduceScatter,
)

Call = dict[int, int]
"""An all-reduce: member -> its position there."""


def scatter_sums(program: Program) -> Program:
    """Return the program with sums reduced where they are used, if every member uses one part."""
    calls = list(_calls(program))
    if not calls:
        return program
    finals = program.final or ((),) * program.ranks
    lines = [RankList(nodes, Rank(rank)) for rank, nodes in enumerate(program.programs)]
    edits: list[Edits] = [{} for _ in lines]
    wide = {name for name, tensor in (program.tensors or {}).items() if tensor.wide}
    size = sizes_of(program)
    for call in calls:
        members = [_member(lines[rank], place, finals[rank]) for rank, place in call.items()]
        parts = _Parts.of([member for member in members if member is not None], wide, size)
        if parts is not None and None not in members:
            for member in parts.members:
                edits[member.rank].update(parts.edits(member))
    if not any(edits):
        return program
    pairs = zip(program.programs, edits, strict=True)
    return replace(program, programs=tuple(tuple(edited(nodes, edit)) for nodes, edit in pairs))


def _calls(program: Program) -> Iterator[Call]:
    """Yield the all-reduces of one block that all members wait for."""
    by_group: dict[tuple[str, tuple[int, ...]], dict[int, list[int]]] = {}
    for rank, nodes in enumerate(program.programs):
        for place, node in enumerate(nodes):
            if isinstance(node, Collective) and rank in node.group and len(node.group) > 1:
                lists = by_group.setdefault((node.communicator, node.group), {})
                lists.setdefault(rank, []).append(place)
    for (_, group), lists in by_group.items():
        if len({len(lists.get(rank, ())) for rank in group}) == 1:
            for places in zip(*(lists[rank] for rank in group), strict=True):
                yield dict(zip(group, places, strict=True))


class _Member(NamedTuple):
    """One member of an all-reduce: the call, the cut of its block, and the parts that it uses."""

    rank: int
    place: int
    call: AllReduce
    cut_place: int
    cut: Cut
    used: tuple[str, ...]


def _member(line: RankList, place: int, final: tuple[str, ...]) -> _Member | None:
    """Return a member of an all-reduce; None unless a cut is all that uses its block."""
    call = line.nodes[place]
    if not isinstance(call, AllReduce) or call.also or call.request is not None:
        return None
    cut_place = line.after(call.block, place)
    cut = None if cut_place is None else line.nodes[cut_place]
    if cut_place is None or not isinstance(cut, Cut) or call.block in final:
        return None
    if not _is_unused(line, call.block, cut_place):
        return None
    used = [name for name in cut.blocks if name in final or not _is_unused(line, name, cut_place)]
    return _Member(line.rank.rank, place, call, cut_place, cut, tuple(used))


def _is_unused(line: RankList, block: str, place: int) -> bool:
    """Return whether nothing uses a block after a position, except to free it."""
    use = line.after(block, place)
    return use is None or isinstance(line.nodes[use], Free)


@dataclass(frozen=True)
class _Parts:
    """The parts of one sum: the members of its all-reduce, and which of them uses each part."""

    members: list[_Member]
    owners: dict[str, int]
    even: bool

    @classmethod
    def of(cls, members: list[_Member], wide: set[str], size: Size) -> _Parts | None:
        """Return the parts; None if members differ, or two of them use the same part."""
        owners = {name: member.rank for member in members for name in member.used}
        most = max((len(member.used) for member in members), default=0)
        kinds = {(member.call, member.cut) for member in members}
        if len(kinds) != 1 or most != 1 or len(owners) < sum(len(m.used) for m in members):
            return None
        cut = members[0].cut
        if len({name.rpartition("[")[0] in wide for name in (cut.block, *cut.blocks)}) > 1:
            return None  # a rounded sum is not the sum of rounded parts
        even = len(owners) == len(members) and len({size(name) for name in owners}) == 1
        return cls(members, owners, even)

    def edits(self, member: _Member) -> Edits:
        """Return the cut of a member in place of its all-reduce, and the reductions after it."""
        call, group = member.call, member.call.group
        kept = {rank: name for name, rank in self.owners.items()}
        reductions: list[Instruction]
        if self.even:
            blocks = tuple(kept[rank] for rank in group)
            reductions = [self._like(call, ReduceScatter, blocks=blocks, block=member.used[0])]
        else:
            reductions = [
                self._like(call, Reduce, block=name, root=rank)
                for name, rank in self.owners.items()
            ]
        return {member.cut_place: [], member.place: [member.cut, *reductions]}

    def _like(
        self, call: AllReduce, kind: Callable[..., Instruction], **fields: Any
    ) -> Instruction:
        """Return another reduction with the members, communicator and scale of an all-reduce."""
        return kind(
            call.group, call.communicator, reduction=call.reduction, scale=call.scale, **fields
        )
