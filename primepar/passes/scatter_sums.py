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

from itertools import chain
from typing import Any, NamedTuple

from primepar.passes.block_uses import RankList, rank_lists
from primepar.passes.calls import calls
from primepar.passes.in_place_parts import Edits, rewritten
from primepar.passes.liveness import sizes_of
from primepar.schedule.program import (
    AllReduce,
    Cut,
    Free,
    Instruction,
    Program,
    Reduce,
    ReduceScatter,
)


def scatter_sums(program: Program) -> Program:
    """Return the program with sums reduced where they are used, if every member uses one part."""
    known = [call for call in chain(*calls(program)) if len(call.members) > 1]
    finals = program.final
    if not known or finals is None:  # without `final` the whole sum may be needed at the end
        return program
    lines = rank_lists(program)
    edits: list[Edits] = [{} for _ in lines]
    wide = {name for name, tensor in (program.tensors or {}).items() if tensor.wide}
    size = sizes_of(program)
    for call in known:
        members = [_member(lines[rank], place, finals[rank]) for rank, place in call.places.items()]
        owners = _owners(members, wide)
        if owners is None:
            continue
        # Every member uses one part, and all parts are equal: that is a reduce-scatter. Else each
        # part is reduced to whoever uses it.
        is_even = len(owners) == len(members) and len({size(name) for name in owners}) == 1
        for rank, member in zip(call.members, members, strict=True):
            if member is not None:
                reductions = _reductions(member.call, owners, rank if is_even else None)
                edits[rank] |= {member.cut_place: [], member.place: [member.cut, *reductions]}
    return rewritten(program, edits)


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
    # What is only freed is used by nobody, and need not be there.
    used = [name for name in cut.blocks if name in final or not _is_unused(line, name, cut_place)]
    return _Member(line.rank.rank, place, call, cut_place, cut, tuple(used))


def _is_unused(line: RankList, block: str, place: int) -> bool:
    """Return whether nothing uses a block after a position, except to free it."""
    use = line.after(block, place)
    return use is None or isinstance(line.nodes[use], Free)


def _owners(members: list[_Member | None], wide: set[str]) -> dict[str, int] | None:
    """Return which rank uses each part; None if members differ, or two of them use the same."""
    known = [member for member in members if member is not None]
    if len(known) < len(members) or len({(member.call, member.cut) for member in known}) > 1:
        return None
    owners = {name: member.rank for member in known for name in member.used}
    counts = [len(member.used) for member in known]
    if max(counts) != 1 or len(owners) < sum(counts):
        return None
    cut = known[0].cut
    # float32 parts of a bfloat16 whole: reduced first they are rounded once, cut first they are
    # not.
    if len({name.rpartition("[")[0] in wide for name in (cut.block, *cut.blocks)}) > 1:
        return None  # a rounded sum is not the sum of rounded parts
    return owners


def _reductions(call: AllReduce, owners: dict[str, int], rank: int | None) -> list[Instruction]:
    """Return what replaces an all-reduce: one reduce-scatter on a `rank`, or a reduce per part."""
    group, alike = call.group, call.communicator
    how: dict[str, Any] = {"reduction": call.reduction, "scale": call.scale}
    if rank is None:
        return [Reduce(group, alike, block=name, root=root, **how) for name, root in owners.items()]
    kept = {owner: name for name, owner in owners.items()}
    blocks = tuple(kept[member] for member in group)
    return [ReduceScatter(group, alike, blocks=blocks, block=kept[rank], **how)]
