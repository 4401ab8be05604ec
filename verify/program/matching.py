"""Matches sends with receives and calls of collectives with each other.

Messages match in order per (source, destination, communicator), collectives in order per
(communicator, members). Without receives from any rank the matching is fixed before anything runs.
Under the rules of MPI a tag selects: a receive takes the first send that has its tag.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from primepar.schedule.program import ANY, Program, Wait
from primepar.verify.deadline import in_time
from primepar.verify.program.calls import MatchedCalls, disputed_side
from primepar.verify.program.operations import (
    COLLECTIVES,
    MessageEnd,
    Operation,
    RankOperations,
    place,
)
from primepar.verify.program.splits import members_made, misused

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
        calls = MatchedCalls(program, flow.calls)
        wrong = dict(misused(flow.operations, members_made(calls.matched)))
        for item, sentence in (*wrong.items(), *calls.faults):
            flow._add_fault(item, sentence)
        flow.matched_calls = {
            call: match for call, match in calls.matched.items() if wrong.keys().isdisjoint(match)
        }
        flow._match_messages(wrong.keys())
        flow.faults.sort(key=lambda fault: (fault.index, fault.rank))
        return flow

    @cached_property
    def is_open(self) -> bool:
        """Whether some receive is from any rank, so that what it takes depends on the run."""
        ends = (end for line in self.operations for operation in line for end in operation.starts)
        return any(end.message.peer == ANY for end in ends)

    @cached_property
    def modes(self) -> frozenset[str]:
        """The modes of all sends but the standard one."""
        ends = (end for line in self.operations for operation in line for end in operation.starts)
        return frozenset(getattr(end.message, "mode", "standard") for end in ends) - {"standard"}

    def _add_fault(self, item: MessageEnd | Operation, what: str) -> None:
        self.faults.append(MatchingFault(item.index, item.rank, f"{place(item)}: {what}"))

    def _match_messages(self, wrong: Collection[MessageEnd | Operation]) -> None:
        channels: dict[tuple[int, int, str], tuple[list[MessageEnd], list[MessageEnd]]] = {}
        for rank, operations in enumerate(in_time(self.operations)):
            for post in (post for operation in operations for post in operation.starts):
                if post in wrong:
                    continue
                message = post.message
                ends = (rank, message.peer) if post.sends else (message.peer, rank)
                channel = (*ends, message.communicator)
                if channel not in channels:
                    channels[channel] = ([], [])
                channels[channel][not post.sends].append(post)
        if self.is_open:
            return
        for sends, receives in in_time(channels.values()):
            pairs = (
                _by_tag(sends, receives)
                if self.program.rules
                else zip(sends, receives, strict=False)
            )
            matched = set()
            for send, receive in pairs:
                self._match_message(send, receive)
                matched |= {send, receive}
            for post in (*sends, *receives):
                if post not in matched:
                    self._add_fault(post, unmatched(post, self.program.rules == "mpi"))

    def _match_message(self, send: MessageEnd, receive: MessageEnd) -> None:
        if receive.message.tag not in (send.message.tag, ANY):
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


def _by_tag(
    sends: Sequence[MessageEnd], receives: Sequence[MessageEnd]
) -> Iterator[tuple[MessageEnd, MessageEnd]]:
    """Yield what MPI matches in a channel: each send, in order, with its first fitting receive.

    No order of events matters: of two sends that fit a receive the earlier one is there first, and
    of two receives that fit a send the earlier one takes it.
    """
    left = list(receives)
    for send in sends:
        fitting = (post for post in left if post.message.tag in (send.message.tag, ANY))
        receive = next(fitting, None)
        if receive is not None:
            left.remove(receive)
            yield send, receive


def unmatched(post: MessageEnd, tagged: bool) -> str:
    """Why a message is never done: nothing is left that it could match."""
    side, verb = ("recv", "from") if post.sends else ("send", "to")
    peer = "any rank" if post.message.peer == ANY else f"rank {post.message.peer}"
    tag = f" with tag {post.message.tag}" if tagged and post.message.tag != ANY else ""
    return (
        f"expected a {side} {verb} rank {post.rank} on {peer}{tag} to match, "
        "got none that is left: add it there, or remove this one"
    )


def needs(
    flow: Matching, operation: Operation, buffered: bool
) -> Iterable[MessageEnd | Operation | None]:
    """What must have started on other ranks before this operation returns.

    None is something that never starts. A buffered send returns at once.
    """
    if operation.awaits:
        return [post.partner for post in operation.awaits if not post.returns_early(buffered)]
    if operation.call is not None:
        return flow.matched_calls.get(operation.call, (None,))
    return (None,) if isinstance(operation.instruction, Wait) else ()
