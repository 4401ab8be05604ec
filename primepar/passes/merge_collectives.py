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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from primepar.passes.block_uses import RankList, rank_lists, request_of
from primepar.passes.calls import Call, Elementwise, calls
from primepar.passes.in_place_parts import Edits, delay, edited, tidied
from primepar.passes.program_tables import Tables
from primepar.schedule.operators import Index, block_name
from primepar.schedule.program import Compute, Cut, Free, Instruction, Join, Program, Wait

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
        self.tables, self.programs = tables, tables.program.programs
        self.lines = rank_lists(tables.program)
        self.edits: list[Edits] = [{} for _ in self.programs]

    def merges(self) -> bool:
        """Merge all runs that can be merged; return whether there are any."""
        for of_group in calls(self.tables.program):
            if len(of_group[0].members) > 1:
                for run in self._runs(of_group):
                    self._shorten(run)
        return any(self.edits)

    def program(self) -> Program:
        """Return the program with its runs merged."""
        lists = [
            tidied(edited(line.nodes, edits), line.rank) if edits else list(line.nodes)
            for line, edits in zip(self.lines, self.edits, strict=True)
        ]
        return self.tables.program_of(lists)

    def _runs(self, of_group: list[Call]) -> Iterator[list[Call]]:
        """Yield calls of one kind with only local instructions between them, on the first member.

        Its communication is numbered: from one call to the next the number grows by one.
        """
        rank = of_group[0].members[0]
        order = {place: number for number, place in enumerate(self.lines[rank].communicating)}

        def key(numbered: tuple[int, Call]) -> tuple[object, ...]:
            number, call = numbered
            # Number of the communication less number of the call: constant while calls follow one
            # another, so `groupby` cuts a run where a message of another kind comes between.
            return order[call.places[rank]] - number, self._kind(rank, call.places[rank])

        for _, group in groupby(enumerate(of_group), key=key):
            run = [call for _, call in group]
            if len(run) > 1 and isinstance(self.programs[rank][run[0].places[rank]], Elementwise):
                yield run

    def _kind(self, rank: int, place: int) -> tuple[object, ...]:
        node = self.programs[rank][place]
        named = ("group", "root", "reduction", "scale")
        tensor = str(getattr(node, "block", "")).rpartition("[")[0]
        posted = request_of(node) is not None
        return type(node), posted, tensor, *(getattr(node, field, None) for field in named)

    def _shorten(self, run: list[Call]) -> None:
        """Merge the longest prefix of a run that can be merged, then continue after it."""
        start = 0
        while start < len(run) - 1:
            counts = range(len(run) - start, 1, -1)
            # Four gathers of which the last is needed early: three become one call, and the fourth
            # is tried next.
            start += next((n for n in counts if self._merge(run[start : start + n])), 1)

    def _merge(self, run: list[Call]) -> bool:
        """Merge some calls on all members; False if one member cannot."""
        places = {rank: [call.places[rank] for call in run] for rank in run[0].members}
        kinds = {self._kind(rank, place) for rank, of_rank in places.items() for place in of_rank}
        if len(kinds) > 1:
            return False
        slots = {rank: self._slots(rank, of_rank) for rank, of_rank in places.items()}
        # All members must mean the same joined block, or the call would reduce different parts.
        where = {tuple((slot.tensor, slot.index) for slot in known) for known in slots.values()}
        fits = len(where) == 1 and all(
            slots[rank] and self._fits(self.lines[rank], of_rank, slots[rank])
            for rank, of_rank in places.items()
        )
        for rank, of_rank in places.items() if fits else ():
            self._write(rank, of_rank, slots[rank])
        return fits

    def _slots(self, rank: int, run: Run) -> list[_Slot]:
        """Return the joins on one rank; none if blocks are not adjacent, or not the rank's own."""
        nodes: Sequence[Any] = [self.programs[rank][place] for place in run]
        member = nodes[0].group.index(rank)
        listed = [getattr(node, "blocks", (node.block,)) for node in nodes]
        for node, blocks in zip(nodes, listed, strict=True):
            kept = blocks[member] if len(blocks) > 1 else blocks[0]
            # An all-gather that reads its part under another name than it writes makes a copy; a
            # joined call has one name for both.
            if node.block != kept or getattr(node, "also", ()):
                return []
        slots = [self._slot(parts) for parts in zip(*listed, strict=True)]
        known = [slot for slot in slots if slot is not None]
        return known if len(known) == len(slots) else []

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
        # Blocks 1 and 2 of four are neighbours, and no block of two slices: 0 1 and 2 3 are.
        if slices % count or line[0] % count or line != list(range(line[0], line[0] + count)):
            return None
        index = (*indices[0][:dim], line[0] // count, *indices[0][dim + 1 :])
        return _Slot(parts, tensor, dim, index)

    def _fits(self, line: RankList, run: Run, slots: list[_Slot]) -> bool:
        """Return whether one call can replace the last one, with its wait at the first wait."""
        for slot in slots:
            pairs = list(zip(slot.parts, run, strict=True))
            # All blocks of an argument are there before the call (they are joined) or none is (they
            # are received).
            present = {not line.is_absent(part, place) for part, place in pairs}
            if len(present) > 1 or (True in present and not self._is_one_kind(line, pairs)):
                return False
            for part, place in pairs:
                between = [use for use in line.between(part, place, run[-1]) if use not in run]
                if any(type(line.nodes[use]) is not Free for use in between):
                    return False
                if line.is_in_flight(part, place):
                    return False
        # One block in two of the calls would be twice in one join.
        used = [name for place in run for name in line.uses[place].reads]
        return len(set(used)) == len(used)

    def _is_one_kind(self, line: RankList, pairs: list[tuple[str, int]]) -> bool:
        """Return whether blocks were made by one cut, or have the same history.

        So a joined block is one partial sum. Example: a term of slice 0 of the dim that is summed
        over in x[0], one of slice 1 in x[1]: joined they are a term of neither.
        """
        made = [line.before(part, place) for part, place in pairs]
        # Parts of one cut are as far summed as the whole was: y[0] and y[1] out of y.whole[0].
        if len({*made}) == 1 and made[0] is not None and isinstance(line.nodes[made[0]], Cut):
            return True
        first, *others = (self._history(line, part, place) for part, place in pairs)
        return all(history == first for history in others)

    def _history(self, line: RankList, block: str, place: int) -> list[tuple[object, ...]]:
        """Return the changes of a block since it was last absent, independent of its own slices."""
        changes: list[tuple[object, ...]] = []
        for use in line.between(block, -1, place):
            node = line.nodes[use]
            if type(node) is Free:
                # Before it was freed the block was other data, as of the layer before.
                changes.clear()
            elif not isinstance(node, Compute):
                fields = ("group", "peer", "scale")
                changes.append((type(node), *(getattr(node, name, None) for name in fields)))
            elif block == node.accumulates:
                known = self.tables.phases.get(str(node.phase))
                open_ = dict(known.templates[-1].entries) if known else {}
                slices = (node.sub_operator or {}).items()
                # A slice that the block's own index names is left out of its history, as it differs
                # from part to part; a slice that is summed over stays.
                key = [number % open_.get(dim, number + 1) for dim, number in slices]
                changes.append((node.phase, node.scale, *key))
        return changes

    def _write(self, rank: int, run: Run, slots: list[_Slot]) -> None:
        """Write the joins, the call in place of the last one, and the cuts after it or its wait."""
        line, edits = self.lines[rank], self.edits[rank]
        last: Any = line.nodes[run[-1]]
        waits = [line.waits[place] for place in run if place in line.waits]
        end = waits[0] if waits else run[-1]
        joins, cuts, wholes = list[Instruction](), list[Instruction](), list[str]()
        moved: dict[int, int] = {}
        for slot in slots:
            whole = self._whole(line, slot, run, end)
            wholes.append(whole)
            if not line.is_absent(slot.parts[0], run[0]):
                joins.append(Join(slot.parts, whole, in_place=True))
            cuts.append(Cut(whole, slot.parts, in_place=True))
            for part, place in zip(slot.parts, run, strict=True):
                between = line.between(part, place, run[-1])
                moved |= {free: end for free in between if free not in run}
        block = wholes[last.group.index(rank)] if len(wholes) > 1 else wholes[0]
        several = {"blocks": tuple(wholes)} if hasattr(last, "blocks") else {}
        call = replace(last, block=block, **several)
        edits |= {place: [] for place in (*run, *waits)}
        edits[run[-1]] = [*joins, call]
        edits[end] = [Wait(last.request), *cuts] if waits else [*joins, call, *cuts]
        delay(edits, line.nodes, moved)

    def _whole(self, line: RankList, slot: _Slot, run: Run, end: int) -> str:
        """Return the joined block, under a name that no block has until the end of the call."""
        coarse = self.tables.coarser(slot.tensor, slot.dim, len(run))
        assert coarse is not None

        def is_free(name: str) -> bool:
            whole = block_name(name, slot.index)
            return line.is_absent(whole, run[0]) and not line.between(whole, run[0], end)

        return block_name(self.tables.name(slot.tensor, coarse, is_free), slot.index)
