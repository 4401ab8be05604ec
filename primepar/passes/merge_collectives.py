"""Collectives of adjoining blocks as one collective.

All-gathers, reduce-scatters, all-reduces, reduces or broadcasts of one group that follow one
another on every member become one where their blocks adjoin, each in one tensor: the blocks of a
member are joined in place before, and cut in place after. Of posted ones the one wait stands where
the first stood.

Why it is right: these collectives copy and add element by element, so that on whole blocks they do
what they do on the parts. All members merge the same calls, with blocks at the same places. On each
of them nothing but frees touches the blocks of a call from there to the last one, and what is
joined has the same history, so it is the same part of its sums.

    all_reduce  x[0] over 0,1         join        x[0] x[1] -> x.joined[0], in place
    all_reduce  x[1] over 0,1   ->    all_reduce  x.joined[0] over 0,1
                                      cut         x.joined[0] -> x[0] x[1], in place

The bytes are the same, in fewer messages. What was freed between the calls is freed after them.
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
"""Places of collectives of one rank that follow one another."""


def merge_collectives(program: Program) -> Program:
    """Collectives of adjoining blocks merged wherever all members can."""
    tables = Tables(program)
    merge = _Merge(tables) if tables.tensors else None
    return merge.program() if merge is not None and merge.merges() else program


@dataclass(frozen=True)
class _Slot:
    """The blocks that stand at one place of the calls of a run, and the whole of them."""

    parts: tuple[str, ...]
    tensor: str
    at: int
    """The dim along which they adjoin."""
    index: Index
    """Of the whole in coarser cuts."""


class _Merge:
    def __init__(self, tables: Tables) -> None:
        program = tables.program
        self.tables, self.programs = tables, program.programs
        initial = initial_blocks(program)
        self.lines = [
            RankList(nodes, Rank(rank), initial[rank]) for rank, nodes in enumerate(self.programs)
        ]
        self.calls: dict[tuple[Ranks, int], list[int]] = {}
        """Of every rank its calls of each group, in order."""
        for rank, nodes in enumerate(self.programs):
            for place, node in enumerate(nodes):
                if getattr(node, "group", None) is not None:
                    self.calls.setdefault((_ranks(node), rank), []).append(place)
        self.edits: list[Edits] = [{} for _ in self.programs]

    def merges(self) -> bool:
        """Merge all runs that can be; whether there are any."""
        for ranks, rank in list(self.calls):
            if rank == min(ranks[1]) and len(ranks[1]) > 1:
                for run in self._runs(rank, self.calls[ranks, rank]):
                    self._shorten(ranks, rank, run)
        return any(self.edits)

    def program(self) -> Program:
        """The program with its runs merged."""
        lists = [
            tidied(edited(nodes, own), Rank(rank)) if own else list(nodes)
            for rank, (nodes, own) in enumerate(zip(self.programs, self.edits, strict=True))
        ]
        return self.tables.program_of(lists)

    def _runs(self, rank: int, calls: list[int]) -> Iterator[Run]:
        """Calls of one kind, with nothing but local instructions between them."""
        order = {at: n for n, at in enumerate(self.lines[rank].communicating)}
        numbered = enumerate(calls)
        for _, run in groupby(numbered, key=lambda each: (order[each[1]] - each[0],
                                                          self._kind(rank, each[1]))):  # fmt: skip
            found = [at for _, at in run]
            if len(found) > 1 and isinstance(self.programs[rank][found[0]], Merging):
                yield found

    def _kind(self, rank: int, place: int) -> tuple[object, ...]:
        node = self.programs[rank][place]
        named = ("group", "root", "reduction")
        posted = getattr(node, "request", None) is not None
        tensor = str(getattr(node, "block", "")).rpartition("[")[0]
        return type(node), posted, tensor, *(getattr(node, field, None) for field in named)

    def _shorten(self, ranks: Ranks, rank: int, run: Run) -> None:
        """Merge as many calls from the first one on as can be, then go on after them."""
        first = self.calls[ranks, rank].index(run[0])
        start, end = first, first + len(run)
        while start < end - 1:
            counts = range(end - start, 1, -1)
            start += next((n for n in counts if self._merge(ranks, start, n)), 1)

    def _merge(self, ranks: Ranks, start: int, count: int) -> bool:
        """Merge some calls on all members; False where one of them cannot."""
        runs = {r: self.calls.get((ranks, r), [])[start : start + count] for r in ranks[1]}
        kinds = {self._kind(r, at) for r, run in runs.items() for at in run}
        if len(kinds) > 1 or any(len(run) < count for run in runs.values()):
            return False
        slots = {r: self._slots(r, run) for r, run in runs.items()}
        places = {tuple((each.tensor, each.index) for each in own or ()) for own in slots.values()}
        if None in slots.values() or len(places) > 1:
            return False
        if not all(self._fits(r, run, slots[r] or ()) for r, run in runs.items()):
            return False
        for r, run in runs.items():
            self._write(r, run, slots[r] or ())
        return True

    def _slots(self, rank: int, run: Run) -> tuple[_Slot, ...] | None:
        """What is joined on one rank; None where blocks do not adjoin, or one call has others."""
        nodes: list[Any] = [self.programs[rank][at] for at in run]
        own = nodes[0].group.index(rank) if rank in nodes[0].group else None
        listed = [getattr(node, "blocks", (node.block,)) for node in nodes]
        if own is None or any(node.block not in (blocks[own:] or blocks)[:1]
                              for node, blocks in zip(nodes, listed, strict=True)):  # fmt: skip
            return None
        slots = [self._slot(parts) for parts in zip(*listed, strict=True)]
        return None if None in slots else tuple(slot for slot in slots if slot is not None)

    def _slot(self, parts: tuple[str, ...]) -> _Slot | None:
        """Adjoining blocks, in coarser cuts of their tensor."""
        names = {part.rpartition("[")[0] for part in parts}
        tensor = names.pop()
        if names or tensor not in self.tables.tensors or not all(p.endswith("]") for p in parts):
            return None
        indices = [tuple(map(int, part.rpartition("[")[2][:-1].split(","))) for part in parts]
        differing = [at for at, line in enumerate(zip(*indices, strict=True)) if len(set(line)) > 1]
        if len(differing) != 1:
            return None
        (at,), count = differing, len(parts)
        line = sorted(index[at] for index in indices)
        slices = len(self.tables.tensors[tensor].cuts[at]) - 1
        if slices % count or line[0] % count or line != list(range(line[0], line[0] + count)):
            return None
        index = (*indices[0][:at], line[0] // count, *indices[0][at + 1 :])
        return _Slot(parts, tensor, at, index)

    def _fits(self, rank: int, run: Run, slots: tuple[_Slot, ...]) -> bool:
        """Whether one call can stand where the last one stands, and its wait where the first is."""
        line, nodes = self.lines[rank], self.programs[rank]
        for slot in slots:
            present = {
                not line.is_absent(part, at) for part, at in zip(slot.parts, run, strict=True)
            }
            if len(present) > 1 or (True in present and not self._is_one_kind(line, slot, run)):
                return False
            for part, at in zip(slot.parts, run, strict=True):
                between = [each for each in line.between(part, at, run[-1]) if each not in run]
                if any(type(nodes[each]) is not Free for each in between):
                    return False
                if line.is_in_flight(part, at):
                    return False
        used = [name for at in run for name in line.rank.touched(nodes[at]).reads]
        return len(set(used)) == len(used)

    def _is_one_kind(self, line: RankList, slot: _Slot, run: Run) -> bool:
        """Whether blocks were made by one cut, or in the same way."""
        made = [line.before(part, at) for part, at in zip(slot.parts, run, strict=True)]
        if len(set(made)) == 1 and made[0] is not None and isinstance(line.nodes[made[0]], Cut):
            return True
        ways = [self._history(line, part, at) for part, at in zip(slot.parts, run, strict=True)]
        return all(way == ways[0] for way in ways)

    def _history(self, line: RankList, block: str, place: int) -> list[tuple[object, ...]]:
        """What has changed a block from where it was last absent, whichever slices it has."""
        ways: list[tuple[object, ...]] = []
        for at in line.between(block, -1, place):
            node = line.nodes[at]
            if type(node) is Free:
                ways.clear()
            elif not isinstance(node, Compute):
                ways.append((type(node), getattr(node, "group", None), getattr(node, "peer", None)))
            elif block == node.accumulates:
                known = self.tables.phases.get(str(node.phase))
                open_ = dict(known.templates[-1].entries) if known else {}
                slices = (node.sub_operator or {}).items()
                key = [each % open_.get(dim, each + 1) for dim, each in slices]
                ways.append((node.phase, *key))
        return ways

    def _write(self, rank: int, run: Run, slots: tuple[_Slot, ...]) -> None:
        line, nodes, edits = self.lines[rank], self.programs[rank], self.edits[rank]
        last: Any = nodes[run[-1]]
        waits = [self._wait(line, at) for at in run]
        wholes = [self._whole(line, slot, run) for slot in slots]
        pairs = list(zip(slots, wholes, strict=True))
        joins: list[Instruction] = [
            Join(slot.parts, whole, in_place=True)
            for slot, whole in pairs
            if not line.is_absent(slot.parts[0], run[0])
        ]
        cuts: list[Instruction] = [Cut(whole, slot.parts, in_place=True) for slot, whole in pairs]
        edits.update({at: [] for at in chain(run, waits[1:]) if at is not None})
        for slot in slots:
            for part, at in zip(slot.parts, run, strict=True):
                for free in line.between(part, at, run[-1]):
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
        """Where what is posted at a place is waited for."""
        request = getattr(line.nodes[place], "request", None)
        later = range(place + 1, len(line.nodes) if request is not None else 0)
        return next((at for at in later if line.nodes[at] == Wait(str(request))), None)

    def _whole(self, line: RankList, slot: _Slot, run: Run) -> str:
        coarse = self.tables.coarser(slot.tensor, slot.at, len(run))
        assert coarse is not None

        end = self._wait(line, run[0]) or run[-1]

        def is_free(name: str) -> bool:
            whole = block_name(name, slot.index)
            return line.is_absent(whole, run[0]) and not line.between(whole, run[0], end)

        return block_name(self.tables.name(slot.tensor, coarse, is_free), slot.index)


def _ranks(node: Any) -> Ranks:
    return node.communicator, tuple(sorted(node.group))
