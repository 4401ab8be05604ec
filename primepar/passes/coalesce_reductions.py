"""Coalesces small all-reduces of one group into one call, like the buckets of Megatron-LM and DDP.

Gradients of biases and norms are a few hundred elements each, and a call costs far more than these
take to send. So a small all-reduce is delayed to a later one of its group, as long as no rank uses
its blocks in between. That one lists all blocks. An all-reduce whose result is needed before the
next one of its group stays where it is.

    compute     g += ...                     compute     g += ...
    all_reduce  g over 0,1
    compute     h += ...              ->     compute     h += ...
    all_reduce  h over 0,1                   all_reduce  g h over 0,1

Why it is correct: on every member the calls are replaced by one, at the position of the last.
No member uses their blocks between, so the same data is reduced and the same data is read. No rank
waits for another one where it did not before.
The bytes are the same, in fewer messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msgspec.structs import replace

from primepar.passes.block_uses import Rank, RankList
from primepar.passes.in_place_parts import Edits, edited
from primepar.passes.liveness import sizes_of
from primepar.schedule.program import AllReduce, Collective, Program

LARGEST_BUCKET = 2**16
"""Elements of one coalesced call; a larger one would start too late to hide behind backward."""
Key = tuple[str, tuple[int, ...]]
"""A communicator and the members of a group."""


@dataclass(frozen=True)
class _Call:
    """One all-reduce: on each member its position, and that of the next use of its blocks."""

    places: tuple[int, ...]
    ends: tuple[int, ...]
    elements: int
    kind: tuple[object, ...]
    """What coalesced calls have in common: reduction, scale, and dtype."""

    def lasts_until(self, other: _Call) -> bool:
        """Return whether no member uses the blocks before it makes another call."""
        return all(end > place for end, place in zip(self.ends, other.places, strict=True))


def coalesce_reductions(program: Program) -> Program:
    """Return the program with small all-reduces of each group coalesced."""
    lines = [RankList(nodes, Rank(rank)) for rank, nodes in enumerate(program.programs)]
    edits: list[Edits] = [{} for _ in lines]
    for key, by_rank in _calls(program).items():
        known = _Known(program, lines, key[1])
        for bucket in _buckets(known.all_reduces(by_rank)):
            for rank, places in zip(key[1], zip(*(call.places for call in bucket), strict=True),
                                    strict=True):  # fmt: skip
                edits[rank].update(_coalesced(lines[rank], places))
    if not any(edits):
        return program
    pairs = zip(program.programs, edits, strict=True)
    return replace(program, programs=tuple(tuple(edited(nodes, edit)) for nodes, edit in pairs))


def _calls(program: Program) -> dict[Key, list[list[int]]]:
    """Return for each group the positions of all its collectives, by member."""
    calls: dict[Key, list[list[int]]] = {}
    for rank, nodes in enumerate(program.programs):
        for place, node in enumerate(nodes):
            if isinstance(node, Collective) and rank in node.group:
                members = tuple(sorted(node.group))
                lists = calls.setdefault((node.communicator, members), [[] for _ in members])
                lists[members.index(rank)].append(place)
    return calls


class _Known:
    """The all-reduces of one group that may be coalesced."""

    def __init__(self, program: Program, lines: list[RankList], members: tuple[int, ...]) -> None:
        self.lines, self.members = [lines[rank] for rank in members], members
        self.size, self.tensors = sizes_of(program), program.tensors or {}

    def all_reduces(self, by_rank: list[list[int]]) -> Iterator[_Call]:
        """Yield small blocking all-reduces that all members make alike."""
        if len(self.members) > 1 and len(set(map(len, by_rank))) == 1:
            for places in zip(*by_rank, strict=True):
                call = self._call(places)
                if call is not None:
                    yield call

    def _call(self, places: tuple[int, ...]) -> _Call | None:
        pairs = list(zip(self.lines, places, strict=True))
        kinds, elements, ends = set(), 0, []
        for line, place in pairs:
            node = line.nodes[place]
            if not isinstance(node, AllReduce) or node.request is not None:
                return None
            counts = [self.size(name) for name in node.reduced]
            wide = {self._wide(name) for name in node.reduced}
            if None in counts or len(wide) > 1:
                return None
            kinds.add((node.group, node.reduction, node.scale, *wide))
            elements = max(elements, sum(count or 0 for count in counts))
            uses = (line.after(name, place) for name in node.reduced)
            ends.append(min(len(line.nodes) if use is None else use for use in uses))
        if len(kinds) > 1 or elements > LARGEST_BUCKET:
            return None
        return _Call(places, tuple(ends), elements, kinds.pop())

    def _wide(self, name: str) -> bool:
        tensor = self.tensors.get(name.rstrip("'").rpartition("[")[0])
        return tensor is not None and tensor.wide


def _buckets(calls: Iterable[_Call]) -> Iterator[list[_Call]]:
    """Yield the calls that become one, two or more at a time."""
    by_kind: dict[tuple[object, ...], list[_Call]] = {}
    for call in calls:
        by_kind.setdefault(call.kind, []).append(call)
    for alike in by_kind.values():
        bucket: list[_Call] = []
        for call, after in zip(alike, [*alike[1:], None], strict=True):
            if after is not None and not call.lasts_until(after):
                continue
            full = sum(known.elements for known in (*bucket, call)) > LARGEST_BUCKET
            if full or not all(known.lasts_until(call) for known in bucket):
                yield from [bucket] if len(bucket) > 1 else []
                bucket = []
            bucket.append(call)
        yield from [bucket] if len(bucket) > 1 else []


def _coalesced(line: RankList, places: tuple[int, ...]) -> Edits:
    """Return the edits of one member: the last call gets the blocks of all."""
    nodes = [node for place in places if isinstance(node := line.nodes[place], AllReduce)]
    block, *also = (name for node in nodes for name in node.reduced)
    edits: Edits = {place: [] for place in places[:-1]}
    return {**edits, places[-1]: [replace(nodes[-1], block=block, also=tuple(also))]}
