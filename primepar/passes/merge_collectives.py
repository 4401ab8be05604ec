"""Merges collectives of adjacent blocks into one collective.

All-gathers, reduce-scatters, all-reduces, reduces or broadcasts of one group that follow one
another on every member become one call, if their blocks are adjacent in one tensor. Each member
joins its blocks in place before the call, and cuts them in place after it. For posted calls the
single wait is at the position of the first wait.

Why it is correct: these collectives copy, add and scale element by element, so the result on a
joined block is the join of the results on the parts. All members merge the same calls, with blocks
at the same places. On each member only frees use the blocks of a call between that call and the
last one.
Joined blocks have the same history, so they are the same partial sums.

    all_reduce  x[0] over 0,1         join        x[0] x[1] -> x.joined[0], in place
    all_reduce  x[1] over 0,1   ->    all_reduce  x.joined[0] over 0,1
                                      cut         x.joined[0] -> x[0] x[1], in place

The bytes are the same, in fewer messages. Blocks freed between the calls are freed after them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

from msgspec.structs import replace

from primepar.passes.block_uses import Rank, RankList
from primepar.passes.in_place_parts import Edits, edited, tidied
from primepar.passes.program_tables import Tables
from primepar.schedule.operators import Index, block_name
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    Broadcast,
    Compute,
    Cut,
    Free,
    Instruction,
    Join,
    Program,
    Reduce,
    ReduceScatter,
    Wait,
)
from primepar.schedule.program_uses import initial_blocks

Merging = AllGather | AllReduce | Broadcast | Reduce | ReduceScatter
Ranks = tuple[str, tuple[int, ...]]
"""A communicator and the members of a group."""
Run = list[int]
"""Positions of consecutive collectives of one rank."""


def merge_collectives(program: Program) -> Program:
    """Return the program with collectives of adjacent blocks merged, where all members can."""
    tables = Tables(program)
    merge = _Merge(tables) if tables.tensors else None
    return merge.program() if merge is not None and merge.merges() else program


@dataclass(frozen=True)
class _Slot:
    """The blocks at one argument of the calls of a run, and their join."""

    parts: tuple[str, ...]
    tensor: str
    dim: int
    """The dim along which they are adjacent."""
    index: Index
    """Index of the joined block in the coarser cuts."""


class _Merge:
    def __init__(self, tables: Tables) -> None:
        program = tables.program
        self.tables, self.programs = tables, program.programs
        initial = initial_blocks(program)
        self.lines = [
            RankList(nodes, Rank(rank), initial[rank]) for rank, nodes in enumerate(self.programs)
        ]
        self.calls: dict[tuple[Ranks, int], list[int]] = {}
        """(group, rank) -> positions of the rank's calls of that group, in order."""
        for rank, nodes in enumerate(self.programs):
            for place, node in enumerate(nodes):
                if getattr(node, "group", None) is not None:
                    self.calls.setdefault((_ranks(node), rank), []).append(place)
        self.edits: list[Edits] = [{} for _ in self.programs]

    def merges(self) -> bool:
        """Merge all runs that can be merged; return whether there are any."""
        for ranks, rank in list(self.calls):
            if rank == min(ranks[1]) and len(ranks[1]) > 1:
                for run in self._runs(rank, self.calls[ranks, rank]):
                    self._shorten(ranks, rank, run)
        return any(self.edits)

    def program(self) -> Program:
        """Return the program with its runs merged."""
        lists = [
            tidied(edited(nodes, edits), Rank(rank)) if edits else list(nodes)
            for rank, (nodes, edits) in enumerate(zip(self.programs, self.edits, strict=True))
        ]
        return self.tables.program_of(lists)

    def _runs(self, rank: int, calls: list[int]) -> Iterator[Run]:
        """Yield calls of one kind with only local instructions between them."""
        order = {place: number for number, place in enumerate(self.lines[rank].communicating)}

        def key(numbered: tuple[int, int]) -> tuple[object, ...]:
            # Consecutive communication: its number grows by one per call.
            number, place = numbered
            return order[place] - number, self._kind(rank, place)

        for _, group in groupby(enumerate(calls), key=key):
            run = [place for _, place in group]
            if len(run) > 1 and isinstance(self.programs[rank][run[0]], Merging):
                yield run

    def _kind(self, rank: int, place: int) -> tuple[object, ...]:
        node = self.programs[rank][place]
        named = ("group", "root", "reduction", "scale")
        posted = getattr(node, "request", None) is not None
        tensor = str(getattr(node, "block", "")).rpartition("[")[0]
        return type(node), posted, tensor, *(getattr(node, field, None) for field in named)

    def _shorten(self, ranks: Ranks, rank: int, run: Run) -> None:
        """Merge the longest prefix of a run that can be merged, then continue after it."""
        first = self.calls[ranks, rank].index(run[0])
        start, end = first, first + len(run)
        while start < end - 1:
            counts = range(end - start, 1, -1)
            start += next((n for n in counts if self._merge(ranks, start, n)), 1)

    def _merge(self, ranks: Ranks, start: int, count: int) -> bool:
        """Merge some calls on all members; False if one member cannot."""
        runs = {r: self.calls.get((ranks, r), [])[start : start + count] for r in ranks[1]}
        kinds = {self._kind(r, place) for r, run in runs.items() for place in run}
        if len(kinds) > 1 or any(len(run) < count for run in runs.values()):
            return False
        slots = {r: self._slots(r, run) for r, run in runs.items()}
        places = {
            tuple((slot.tensor, slot.index) for slot in rank_slots or ())
            for rank_slots in slots.values()
        }
        if None in slots.values() or len(places) > 1:
            return False
        if not all(self._fits(r, run, slots[r] or ()) for r, run in runs.items()):
            return False
        for r, run in runs.items():
            self._write(r, run, slots[r] or ())
        return True

    def _slots(self, rank: int, run: Run) -> tuple[_Slot, ...] | None:
        """Return the joins on one rank; None if blocks are not adjacent, or not the rank's own."""
        nodes: list[Any] = [self.programs[rank][place] for place in run]
        member = nodes[0].group.index(rank) if rank in nodes[0].group else None
        listed = [getattr(node, "blocks", (node.block,)) for node in nodes]
        if any(getattr(node, "also", ()) for node in nodes):
            return None
        if member is None or any(node.block not in (blocks[member:] or blocks)[:1]
                                 for node, blocks in zip(nodes, listed, strict=True)):  # fmt: skip
            return None
        slots = [self._slot(parts) for parts in zip(*listed, strict=True)]
        return None if None in slots else tuple(slot for slot in slots if slot is not None)

    def _slot(self, parts: tuple[str, ...]) -> _Slot | None:
        """Return the join of adjacent blocks in coarser cuts of their tensor, else None.

        Example: blocks 2 and 3 along a dim of 4 slices join to block 1 of 2 slices; blocks 1 and 2
        do not join.
        """
        names = {part.rpartition("[")[0] for part in parts}
        tensor = names.pop()
        if names or tensor not in self.tables.tensors or not all(p.endswith("]") for p in parts):
            return None
        indices = [tuple(map(int, part.rpartition("[")[2][:-1].split(","))) for part in parts]
        columns = enumerate(zip(*indices, strict=True))
        differing = [dim for dim, numbers in columns if len(set(numbers)) > 1]
        if len(differing) != 1:
            return None
        (dim,), count = differing, len(parts)
        line = sorted(index[dim] for index in indices)
        slices = len(self.tables.tensors[tensor].cuts[dim]) - 1
        if slices % count or line[0] % count or line != list(range(line[0], line[0] + count)):
            return None
        index = (*indices[0][:dim], line[0] // count, *indices[0][dim + 1 :])
        return _Slot(parts, tensor, dim, index)

    def _fits(self, rank: int, run: Run, slots: tuple[_Slot, ...]) -> bool:
        """Return whether one call can replace the last one, with its wait at the first wait."""
        line, nodes = self.lines[rank], self.programs[rank]
        for slot in slots:
            present = {
                not line.is_absent(part, place) for part, place in zip(slot.parts, run, strict=True)
            }
            if len(present) > 1 or (True in present and not self._is_one_kind(line, slot, run)):
                return False
            for part, place in zip(slot.parts, run, strict=True):
                between = [use for use in line.between(part, place, run[-1]) if use not in run]
                if any(type(nodes[use]) is not Free for use in between):
                    return False
                if line.is_in_flight(part, place):
                    return False
        used = [name for place in run for name in line.rank.touched(nodes[place]).reads]
        return len(set(used)) == len(used)

    def _is_one_kind(self, line: RankList, slot: _Slot, run: Run) -> bool:
        """Return whether blocks were made by one cut, or have the same history."""
        made = [line.before(part, place) for part, place in zip(slot.parts, run, strict=True)]
        if len(set(made)) == 1 and made[0] is not None and isinstance(line.nodes[made[0]], Cut):
            return True
        histories = [
            self._history(line, part, place) for part, place in zip(slot.parts, run, strict=True)
        ]
        return all(history == histories[0] for history in histories)

    def _history(self, line: RankList, block: str, place: int) -> list[tuple[object, ...]]:
        """Return the changes of a block since it was last absent, independent of its own slices."""
        changes: list[tuple[object, ...]] = []
        for use in line.between(block, -1, place):
            node = line.nodes[use]
            if type(node) is Free:
                changes.clear()
            elif not isinstance(node, Compute):
                fields = ("group", "peer", "scale")
                changes.append((type(node), *(getattr(node, name, None) for name in fields)))
            elif block == node.accumulates:
                known = self.tables.phases.get(str(node.phase))
                open_ = dict(known.templates[-1].entries) if known else {}
                slices = (node.sub_operator or {}).items()
                key = [number % open_.get(dim, number + 1) for dim, number in slices]
                changes.append((node.phase, node.scale, *key))
        return changes

    def _write(self, rank: int, run: Run, slots: tuple[_Slot, ...]) -> None:
        line, nodes, edits = self.lines[rank], self.programs[rank], self.edits[rank]
        last: Any = nodes[run[-1]]
        waits = [self._wait(line, place) for place in run]
        wholes = [self._whole(line, slot, run) for slot in slots]
        pairs = list(zip(slots, wholes, strict=True))
        joins: list[Instruction] = [
            Join(slot.parts, whole, in_place=True)
            for slot, whole in pairs
            if not line.is_absent(slot.parts[0], run[0])
        ]
        cuts: list[Instruction] = [Cut(whole, slot.parts, in_place=True) for slot, whole in pairs]
        edits.update({place: [] for place in chain(run, waits[1:]) if place is not None})
        for slot in slots:
            for part, place in zip(slot.parts, run, strict=True):
                for free in line.between(part, place, run[-1]):
                    if free not in run:
                        edits[free] = []
                        cuts.append(nodes[free])
        block = wholes[last.group.index(rank)] if len(wholes) > 1 else wholes[0]
        several = {"blocks": tuple(wholes)} if hasattr(last, "blocks") else {}
        call = replace(last, block=block, **several)
        edits[run[-1]] = [*joins, call, *([] if last.request is not None else cuts)]
        if last.request is not None and waits[0] is not None:
            edits[waits[0]] = [Wait(last.request), *cuts]

    def _wait(self, line: RankList, place: int) -> int | None:
        """Return the position of the wait for a posted collective, None if there is none."""
        request = getattr(line.nodes[place], "request", None)
        later = range(place + 1, len(line.nodes) if request is not None else 0)
        return next((use for use in later if line.nodes[use] == Wait(str(request))), None)

    def _whole(self, line: RankList, slot: _Slot, run: Run) -> str:
        coarse = self.tables.coarser(slot.tensor, slot.dim, len(run))
        assert coarse is not None

        end = self._wait(line, run[0]) or run[-1]

        def is_free(name: str) -> bool:
            whole = block_name(name, slot.index)
            return line.is_absent(whole, run[0]) and not line.between(whole, run[0], end)

        return block_name(self.tables.name(slot.tensor, coarse, is_free), slot.index)


def _ranks(node: Any) -> Ranks:
    return node.communicator, tuple(sorted(node.group))
