"""Matches calls of collectives, in order per communicator and members."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest

from primepar.schedule.agreement import dispute
from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    Message,
    ReduceScatter,
)
from primepar.verify.deadline import in_time
from primepar.verify.program.operations import MessageEnd, Operation, place

Fault = tuple[MessageEnd | Operation, str]
"""What can never be completed, and why."""
_NO_MEMBER = "expected a group with rank {0} in it, got one without: add it, or drop the call"


class MatchedCalls:
    """The matched calls of collectives: each call with those of all members, and what is wrong."""

    def __init__(self, calls: list[Operation]) -> None:
        self.matched: dict[Operation, tuple[Operation, ...]] = {}
        self.faults: list[Fault] = []
        by_members: dict[tuple[str, tuple[int, ...]], dict[int, list[Operation]]] = {}
        for operation in in_time(calls):
            node = operation.instruction
            assert isinstance(node, Collective)
            if operation.rank not in node.group:
                self.faults.append((operation, _NO_MEMBER.format(operation.rank)))
                continue
            key = (node.communicator, tuple(sorted(node.group)))
            by_members.setdefault(key, {}).setdefault(operation.rank, []).append(operation)
        for (_, members), by_rank in by_members.items():
            for match in in_time(zip_longest(*(by_rank.get(rank, []) for rank in members))):
                self._match(members, match)

    def _match(self, members: tuple[int, ...], match: tuple[Operation | None, ...]) -> None:
        present = tuple(call for call in match if call is not None)
        absent = [rank for rank, call in zip(members, match, strict=True) if call is None]
        if absent:
            sentence = (
                f"expected rank {absent[0]} to make the matching call, got none that is left "
                "there: add it, or take the rank out of the group"
            )
            self.faults.append((present[0], sentence))
            return
        for call in present:
            wrong = _disagreement(present[0], call)
            if wrong is not None:
                self.faults.append((call, wrong))
                return
        disputed = disputed_side(present)
        if disputed is None:
            self.matched.update(dict.fromkeys(present, present))
        else:
            self.faults.append(disputed)


def disputed_side(sides: Sequence[MessageEnd | Operation]) -> Fault | None:
    """The side that states another count or type of data than an earlier one; None if none does."""
    disagreement = dispute(list(_stating(sides)))
    if disagreement is None:
        return None
    first = place(sides[disagreement.first])
    return sides[disagreement.second], (
        f"expected {disagreement.claim} {disagreement.want} as in {first}, "
        f"got {disagreement.got}: write the same on all of its ranks"
    )


def _stating(
    sides: Sequence[MessageEnd | Operation],
) -> Iterator[tuple[int, Message | Collective]]:
    for side in sides:
        node = side.message if isinstance(side, MessageEnd) else side.instruction
        assert isinstance(node, Message | Collective)
        yield side.rank, node


def _disagreement(first: Operation, call: Operation) -> str | None:
    """How a collective call differs from that of the first member; None if they match."""
    one, other = first.instruction, call.instruction
    assert isinstance(one, Collective)
    assert isinstance(other, Collective)
    if type(one) is not type(other):
        return (
            f"expected to meet {place(first)}, got another collective: "
            "call them in one order on all of their ranks"
        )
    for name in ("group", "root", "reduction", "scale"):
        want, got = getattr(one, name, None), getattr(other, name, None)
        if want != got:
            return (
                f"expected {name} {_plain(want)} as in {place(first)}, got {_plain(got)}: "
                "write the same on all of the group's ranks"
            )
    several = [len(node.reduced) for node in (one, other) if isinstance(node, AllReduce)]
    if len(set(several)) > 1:
        return (
            f"expected {several[0]} blocks as in {place(first)}, got {several[1]}: "
            "list the same on all of the group's ranks"
        )
    blocks: list[tuple[str, ...]] = []
    if isinstance(other, AllGather | ReduceScatter | AllToAll):
        blocks.append(other.blocks)
    if isinstance(other, AllToAll):
        blocks.append(other.into)
    for names in blocks:
        if len(names) != len(other.group):
            return (
                f"expected {len(other.group)} blocks, one for each rank of the group, "
                f"got {len(names)}: list one for each"
            )
    return None


def _plain(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
