"""The streams of all ranks: one for each communicator and rank, run strictly in order.

With one queue a rank has one stream for all its communicators. Only the head of a stream runs. A
message is done when both of its ends are in batches at the heads of their streams; a collective
when it is at the heads of the streams of all members.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from nccl_rules.operations import Batch, CollectiveCall, PeerMessage, results


class RulesError(Exception):
    """Calls that do not fit together, or a deadlock."""


class Posted:
    """One operation in a stream, with what its rank gets from it."""

    def __init__(self, communicator: str, operation: Batch | CollectiveCall) -> None:
        self.communicator, self.operation = communicator, operation
        self.done = False
        self.gotten: dict[int, bytes] = {}
        """Position of the message, 0 for a collective -> received bytes."""


class Streams:
    """The streams of `ranks` ranks."""

    def __init__(self, *, one_queue: bool) -> None:
        self._one_queue = one_queue
        self._heads: dict[str, dict[int, deque[Posted]]] = {}
        self._posted: dict[tuple[int, int], Posted] = {}

    def post(
        self, rank: int, number: int, communicator: str, operation: Batch | CollectiveCall
    ) -> None:
        """Append an operation to a rank's stream, and run what can run then."""
        posted = self._posted[rank, number] = Posted(communicator, operation)
        streams = self._heads.setdefault("" if self._one_queue else communicator, {})
        streams.setdefault(rank, deque()).append(posted)
        while self._advance(streams):
            pass

    def is_done(self, rank: int, number: int) -> bool:
        return self._posted[rank, number].done

    def take(self, rank: int, number: int) -> dict[int, bytes]:
        """Return what a rank got from an operation that is done."""
        return self._posted.pop((rank, number)).gotten

    def operation(self, rank: int, number: int) -> Batch | CollectiveCall:
        return self._posted[rank, number].operation

    def waiting(self) -> Iterator[tuple[int, str, str, int]]:
        """Yield (rank, communicator, operation at the head, operations behind it)."""
        for streams in self._heads.values():
            for rank, stream in streams.items():
                if stream:
                    head = stream[0]
                    yield rank, head.communicator, str(head.operation), len(stream) - 1

    def _advance(self, streams: dict[int, deque[Posted]]) -> bool:
        """Run the heads of some streams once; whether anything ran."""
        first = {rank: stream[0] for rank, stream in streams.items() if stream}
        ran = False
        for rank, head in first.items():
            heads = {r: h for r, h in first.items() if h.communicator == head.communicator}
            if isinstance(head.operation, CollectiveCall):
                ran |= _run_collective(head.operation, rank, heads)
            else:
                ran |= _run_batch(head, head.operation, rank, heads)
        for rank, head in first.items():
            if head.done:
                streams[rank].popleft()
        return ran


def _run_collective(call: CollectiveCall, rank: int, heads: dict[int, Posted]) -> bool:
    calls, posts = [], []
    for member in call.members:
        head = heads.get(member)
        if head is None or not isinstance(head.operation, CollectiveCall):
            return False
        if head.operation.alike != call.alike:
            raise RulesError(
                f"ranks {rank} and {member} call different collectives on one communicator: "
                f"{call} with {_listed(call.members)}, and "
                f"{head.operation} with {_listed(head.operation.members)}"
            )
        calls.append(head.operation)
        posts.append(head)
    if posts[0].done:
        return False
    _check_splits(calls)
    for head, data in zip(posts, results(calls), strict=True):
        head.done = True
        if data is not None:
            head.gotten[0] = data
    return True


def _check_splits(calls: list[CollectiveCall]) -> None:
    for place, giver in enumerate(calls if calls[0].kind == "all_to_all" else ()):
        for index, taker in enumerate(calls):
            given, expected = giver.splits[0][index], taker.splits[1][place]
            if given != expected:
                raise RulesError(
                    f"rank {giver.members[place]} sends {given} elements in an all_to_all, and "
                    f"rank {giver.members[index]} receives {expected}"
                )


def _run_batch(head: Posted, batch: Batch, rank: int, heads: dict[int, Posted]) -> bool:
    ran = False
    for place in sorted(batch.left):
        message = batch.messages[place]
        there = heads.get(message.peer)
        # The receiver's turn finds the message too; only sends are looked at.
        if not message.sends or there is None or not isinstance(there.operation, Batch):
            continue
        index = there.operation.first(rank, sends=False)
        if index is None or batch.first(message.peer, sends=True) != place:
            continue
        _check_alike(rank, message, there.operation.messages[index])
        assert message.content.data is not None
        there.gotten[index] = message.content.data
        batch.left.discard(place)
        there.operation.left.discard(index)
        there.done, head.done = not there.operation.left, not batch.left
        ran = True
    return ran


def _check_alike(rank: int, send: PeerMessage, receive: PeerMessage) -> None:
    given, expected = send.content, receive.content
    if (given.elements, given.dtype) != (expected.elements, expected.dtype):
        raise RulesError(f"rank {rank}: {send}, but rank {send.peer}: {receive}")


def _listed(members: tuple[int, ...]) -> str:
    return ",".join(map(str, members))
