"""Matches sends with receives and calls of collectives with each other.

Messages match in order per (source, destination, communicator), collectives in order per
(communicator, members). So the matching is fixed before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from primepar.schedule.program import Program, Wait
from primepar.verify.deadline import in_time
from primepar.verify.program.calls import MatchedCalls, disputed_side
from primepar.verify.program.operations import (
    COLLECTIVES,
    MessageEnd,
    Operation,
    RankOperations,
    place,
)

__all__ = ["COLLECTIVES", "Matching", "MatchingFault", "MessageEnd", "Operation", "needs", "place"]


@dataclass(frozen=True)
class MatchingFault:
    """A message, wait or collective that can never be completed, in one sentence."""

    index: int
    rank: int
    sentence: str


@dataclass
class Matching:
    """The operations of every rank, with the matched messages and collectives.

    The k-th send of a channel matches its k-th receive, where a channel is (source, destination,
    communicator). A request without a wait gets one after the rank's last instruction, and is
    listed in `leaked`. What is in `faults` has no partner, and no entry in `matched_calls`.
    """

    program: Program
    operations: list[list[Operation]] = field(default_factory=list)
    calls: list[Operation] = field(default_factory=list)
    """All calls of collectives."""
    matched_calls: dict[Operation, tuple[Operation, ...]] = field(default_factory=dict)
    faults: list[MatchingFault] = field(default_factory=list)
    leaked: list[MessageEnd | Operation] = field(default_factory=list)

    @classmethod
    def of(cls, program: Program) -> Matching:
        """Match a program's messages and collectives."""
        flow = cls(program)
        for rank in in_time(range(program.ranks)):
            read = RankOperations.of(program, rank)
            flow.operations.append(read.operations)
            flow.leaked += read.leaked
            for wait in read.unposted:
                flow._add_fault(wait, _NOT_POSTED.format(getattr(wait.instruction, "request", "")))
        lists = flow.operations
        flow.calls = [
            call for line in lists for call in line if type(call.instruction) in COLLECTIVES
        ]
        calls = MatchedCalls(flow.calls)
        for item, sentence in calls.faults:
            flow._add_fault(item, sentence)
        flow.matched_calls = calls.matched
        flow._match_messages()
        flow.faults.sort(key=lambda fault: (fault.index, fault.rank))
        return flow

    def _add_fault(self, item: MessageEnd | Operation, what: str) -> None:
        self.faults.append(MatchingFault(item.index, item.rank, f"{place(item)}: {what}"))

    def _match_messages(self) -> None:
        channels: dict[tuple[int, int, str], tuple[list[MessageEnd], list[MessageEnd]]] = {}
        for rank, operations in enumerate(in_time(self.operations)):
            for post in (post for operation in operations for post in operation.starts):
                message = post.message
                ends = (rank, message.peer) if post.sends else (message.peer, rank)
                channel = (*ends, message.communicator)
                if channel not in channels:
                    channels[channel] = ([], [])
                channels[channel][not post.sends].append(post)
        for sends, receives in in_time(channels.values()):
            for send, receive in zip(sends, receives, strict=False):
                self._match_message(send, receive)
            for post in (*sends[len(receives) :], *receives[len(sends) :]):
                self._add_fault(post, unmatched(post))

    def _match_message(self, send: MessageEnd, receive: MessageEnd) -> None:
        if receive.message.tag != send.message.tag:
            self._add_fault(
                receive,
                f"expected tag {receive.message.tag}, got tag {send.message.tag} from "
                f"{place(send)}: messages match in order and tags do not select them, so post "
                "them in one order on both ranks",
            )
            return
        wrong = disputed_side((send, receive))
        if wrong is None:
            send.partner, receive.partner = receive, send
        else:
            self._add_fault(*wrong)


_NOT_POSTED = (
    "expected a request that is in flight, got {0!r}, which is not: "
    "post it before, and wait for it once"
)


def unmatched(post: MessageEnd) -> str:
    """Why a message is never done: nothing is left that it could match."""
    side, verb = ("recv", "from") if post.sends else ("send", "to")
    return (
        f"expected a {side} {verb} rank {post.rank} on rank {post.message.peer} to match, "
        "got none that is left: add it there, or remove this one"
    )


def needs(
    flow: Matching, operation: Operation, buffered: bool
) -> Iterable[MessageEnd | Operation | None]:
    """What must have started on other ranks before this operation returns.

    None is something that never starts. A buffered send returns at once.
    """
    if operation.awaits:
        return [post.partner for post in operation.awaits if not (post.sends and buffered)]
    if operation.call is not None:
        return flow.matched_calls.get(operation.call, (None,))
    return (None,) if isinstance(operation.instruction, Wait) else ()
