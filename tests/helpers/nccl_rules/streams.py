"""The queues of all ranks, in which the streams of their communicators run strictly in order.

A queue has one stream, or several. Only its head runs, from when the rank's stream that computes
has come to the post. A message is done when both of its ends are in batches at the heads of their
queues; a collective when it is at the heads of the queues of all members.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator

from nccl_rules.operations import Batch, CollectiveCall, PeerMessage, results


class RulesError(Exception):
    """Calls that do not fit together, or a deadlock."""


class Posted:
    """One operation in a queue, with what its rank gives and gets."""

    def __init__(self, communicator: str, operation: Batch | CollectiveCall) -> None:
        self.communicator, self.operation = communicator, operation
        self.given: dict[int, bytes] | None = None
        """Position of the message, 0 for a collective -> bytes; None until the stream that computes
        has come to the post."""
        self.gotten: dict[int, bytes] = {}
        self.done = False


class Streams:
    """The queues of all ranks: `queues` of them on each, or 0, one for each communicator."""

    def __init__(self, queues: int, numbers: dict[int, dict[str, int]] | None = None) -> None:
        self._queues = queues
        self._posts = defaultdict[int, defaultdict[int, deque[Posted]]](lambda: defaultdict(deque))
        """Rank -> queue -> what is in it."""
        self.numbers: dict[int, dict[str, int]] = numbers or {}
        """Rank -> communicator -> the number of its stream, in the order of their first posts."""
        self._posted: dict[tuple[int, int], Posted] = {}

    def post(
        self, rank: int, number: int, communicator: str, operation: Batch | CollectiveCall
    ) -> None:
        """Append an operation to the queue of its communicator."""
        self._posted[rank, number] = posted = Posted(communicator, operation)
        numbers = self.numbers.setdefault(rank, {})
        numbers.setdefault(communicator, len(numbers))
        self._posts[rank][self._queue(rank, communicator)].append(posted)

    def begin(self, rank: int, number: int, given: dict[int, bytes]) -> None:
        """Let an operation begin, and run what can run then."""
        posted = self._posted[rank, number]
        posted.given = given
        changed = {posted.communicator}
        while changed:
            changed |= self._run(changed.pop())

    def is_done(self, rank: int, number: int) -> bool:
        return self._posted[rank, number].done

    def take(self, rank: int, number: int) -> dict[int, bytes]:
        """Return what a rank got from an operation that is done."""
        return self._posted.pop((rank, number)).gotten

    def operation(self, rank: int, number: int) -> Batch | CollectiveCall:
        return self._posted[rank, number].operation

    def waiting(self) -> Iterator[tuple[int, str, str, int]]:
        """Yield (rank, communicator, operation at the head, operations behind it)."""
        for rank, queues in self._posts.items():
            for queue in queues.values():
                if queue:
                    yield rank, queue[0].communicator, str(queue[0].operation), len(queue) - 1

    def _queue(self, rank: int, communicator: str) -> int:
        number = self.numbers[rank][communicator]
        return number % self._queues if self._queues else number

    def _run(self, communicator: str) -> set[str]:
        """Run the heads of a communicator once; returns the communicators that may go on."""
        heads = {}
        for rank, numbers in self.numbers.items():
            if communicator in numbers:
                queue = self._posts[rank][self._queue(rank, communicator)]
                if queue and queue[0].communicator == communicator and queue[0].given is not None:
                    heads[rank] = queue[0]
        changed = set()
        for rank, head in heads.items():
            if isinstance(head.operation, CollectiveCall):
                ran = _run_collective(head.operation, rank, heads)
            else:
                ran = _run_batch(head, head.operation, rank, heads)
            changed |= {communicator} if ran else set()
        for rank, head in heads.items():
            if head.done:
                queue = self._posts[rank][self._queue(rank, communicator)]
                queue.popleft()
                changed |= {queue[0].communicator} if queue else set()
        return changed


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
    given = [(post.given or {})[0] for post in posts]
    for head, data in zip(posts, results(calls, given), strict=True):
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
        assert head.given is not None
        there.gotten[index] = head.given[place]
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
