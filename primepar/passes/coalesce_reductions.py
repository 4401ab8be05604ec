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

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from primepar.passes.block_uses import RankList, Size, rank_lists
from primepar.passes.calls import Call, calls
from primepar.passes.in_place_parts import Edits, rewritten
from primepar.passes.liveness import sizes_of
from primepar.schedule.program import AllReduce, Program

LARGEST_BUCKET = 2**16
"""Elements of one coalesced call; a larger one would start too late to hide behind backward."""


@dataclass(frozen=True)
class _Small:
    """A small all-reduce: on each member its position, and that of the next use of its blocks."""

    places: dict[int, int]
    ends: dict[int, int]
    elements: int
    kind: tuple[object, ...]
    """What coalesced calls have in common: members, reduction, scale, and dtype."""

    def lasts_until(self, other: _Small) -> bool:
        """Return whether no member uses the blocks before it makes another call."""
        return all(self.ends[rank] > place for rank, place in other.places.items())


def coalesce_reductions(program: Program) -> Program:
    """Return the program with small all-reduces of each group coalesced."""
    size, tensors = sizes_of(program), program.tensors or {}
    wide = frozenset(name for name, tensor in tensors.items() if tensor.wide)
    lines = rank_lists(program)
    edits: list[Edits] = [{} for _ in lines]
    for of_group in calls(program):
        for bucket in _buckets(_small_all_reduces(of_group, lines, size, wide)):
            for rank in bucket[0].places:
                edits[rank] |= _coalesced(lines[rank], [call.places[rank] for call in bucket])
    return rewritten(program, edits)


def _small_all_reduces(
    of_group: Iterable[Call], lines: Sequence[RankList], size: Size, wide: frozenset[str]
) -> Iterator[_Small]:
    """Yield the small blocking all-reduces that all members make alike."""
    for call in of_group:
        kinds, elements, ends = set[tuple[object, ...]](), 0, dict[int, int]()
        for rank, place in call.places.items():
            line, node = lines[rank], lines[rank].nodes[place]
            if not isinstance(node, AllReduce) or node.request is not None:
                break
            counts = [size(name) for name in node.reduced]
            are_wide = {name.rstrip("'").rpartition("[")[0] in wide for name in node.reduced}
            # A bfloat16 and a float32 block cannot be in one call, which has one type.
            if None in counts or len(are_wide) > 1:
                break
            kinds.add((node.group, node.reduction, node.scale, *are_wide))
            elements = max(elements, sum(count or 0 for count in counts))
            uses = [line.after(name, place) for name in node.reduced]
            ends[rank] = min(len(line.nodes) if use is None else use for use in uses)
        # All members have to agree, or one would make two calls where the others make one.
        is_one = len(ends) == len(call.members) > 1 and len(kinds) == 1
        if is_one and elements <= LARGEST_BUCKET:
            yield _Small(call.places, ends, elements, kinds.pop())


def _buckets(calls: Iterable[_Small]) -> Iterator[list[_Small]]:
    """Yield the calls that become one, two or more at a time.

    A call that does not last until the next one of its kind stays, and so does the bucket before
    it: if its own blocks last, a later call may still join. With u, v, w reduced in turn, and v
    used before w, u and w are one call.
    """
    by_kind: dict[tuple[object, ...], list[_Small]] = {}
    for call in calls:
        by_kind.setdefault(call.kind, []).append(call)
    for alike in by_kind.values():
        bucket: list[_Small] = []
        for call, after in zip(alike, [*alike[1:], None], strict=True):
            # v is used before w is reduced, so v cannot wait for the call of w.
            if after is not None and not call.lasts_until(after):
                continue
            # A bucket ends where it is full, or where the oldest of its blocks is used before this
            # call.
            full = sum(known.elements for known in (*bucket, call)) > LARGEST_BUCKET
            if full or not all(known.lasts_until(call) for known in bucket):
                yield from [bucket] if len(bucket) > 1 else []
                bucket = []
            bucket.append(call)
        yield from [bucket] if len(bucket) > 1 else []


def _coalesced(line: RankList, places: list[int]) -> Edits:
    """Return the edits of one member: the last call gets the blocks of all."""
    nodes = [node for place in places if isinstance(node := line.nodes[place], AllReduce)]
    block, *also = (name for node in nodes for name in node.reduced)
    edits: Edits = {place: [] for place in places[:-1]}
    return {**edits, places[-1]: [replace(nodes[-1], block=block, also=tuple(also))]}
