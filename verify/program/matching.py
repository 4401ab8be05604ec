"""Matches sends with receives and calls of collectives with each other.

Messages match in order per (source, destination, communicator), collectives in order per
(communicator, members). There are no wildcards, so the matching is fixed before anything runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import get_args

from primepar.schedule.program import (
    AllGather,
    AllReduce,
    AllToAll,
    Collective,
    Group,
    Instruction,
    IRecv,
    ISend,
    Message,
    Program,
    Recv,
    ReduceScatter,
    Send,
    Wait,
    disputed,
)
from primepar.schedule.program_file import instruction_line
from primepar.verify.deadline import in_time

COLLECTIVES = frozenset(get_args(Collective))
_BLOCKING = COLLECTIVES | {Send, Recv, Wait, Group}
LOCAL = frozenset(get_args(Instruction)) - _BLOCKING - {ISend, IRecv}
"""Instructions that involve only their own rank."""


@dataclass(eq=False, slots=True)
class MessageEnd:
    """One side of one message."""

    rank: int
    index: int
    message: Message
    sends: bool
    """Whether this is the sender's side."""
    partner: MessageEnd | None = None
    """The other side; None where nothing matches it."""

    def __str__(self) -> str:
        return _place_on_rank(self.index, self.message)


@dataclass(eq=False, slots=True)
class Operation:
    """One instruction of one rank: the messages that it starts and those that it awaits.

    `posted` is the call of a collective that a wait awaits.
    """

    rank: int
    index: int
    instruction: Instruction
    starts: tuple[MessageEnd, ...] = ()
    awaits: tuple[MessageEnd, ...] = ()
    posted: Operation | None = None

    @property
    def posts(self) -> bool:
        """Whether it is a call of a collective that a wait completes."""
        node = self.instruction
        return type(node) in COLLECTIVES and getattr(node, "request", None) is not None

    @property
    def call(self) -> Operation | None:
        """The call of a collective that it completes: its own, or the posted one."""
        return self if type(self.instruction) in COLLECTIVES and not self.posts else self.posted

    @property
    def blocks(self) -> bool:
        """Whether it may have to wait for another rank before it returns."""
        return type(self.instruction) in _BLOCKING and not self.posts

    def __str__(self) -> str:
        return _place_on_rank(self.index, self.instruction)


def _place_on_rank(index: int, instruction: Instruction) -> str:
    line = "" if instruction.source is None else f" at {instruction.source}"
    return f"instruction {index} ({instruction_line(instruction)}){line}"


def place(item: MessageEnd | Operation) -> str:
    """How messages name a place: `rank 0, instruction 3 (send X -> 1) at train.py:42`."""
    return f"rank {item.rank}, {item}"


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
        for rank in range(program.ranks):
            flow.operations.append(list(flow._operations_of(rank)))
        flow._match_messages()
        flow._match_collectives()
        flow.faults.sort(key=lambda fault: (fault.index, fault.rank))
        return flow

    def _operations_of(self, rank: int) -> Iterator[Operation]:
        pending: dict[str, MessageEnd | Operation] = {}
        instructions = self.program.programs[rank]
        for index, instruction in enumerate(in_time(instructions)):
            if type(instruction) in LOCAL:
                yield Operation(rank, index, instruction)
                continue
            posts: tuple[MessageEnd, ...]
            match instruction:
                case Group(body=body):
                    posts = tuple(
                        [MessageEnd(rank, index, post, type(post) is Send) for post in body]
                    )
                    yield Operation(rank, index, instruction, posts, posts)
                case ISend() | IRecv():
                    post = MessageEnd(rank, index, instruction, isinstance(instruction, ISend))
                    self._pend(pending, instruction.request, post)
                    yield Operation(rank, index, instruction, (post,))
                case Send() | Recv():
                    posts = (MessageEnd(rank, index, instruction, isinstance(instruction, Send)),)
                    yield Operation(rank, index, instruction, posts, posts)
                case Wait(request=request):
                    yield self._wait(rank, index, instruction, pending.pop(request, None))
                case _:
                    operation = Operation(rank, index, instruction)
                    self.calls.append(operation)
                    if operation.posts:
                        self._pend(pending, str(getattr(instruction, "request", "")), operation)
                    yield operation
        self.leaked += pending.values()
        for request, posted in pending.items():
            yield self._wait(rank, len(instructions), Wait(request), posted)

    def _pend(
        self,
        pending: dict[str, MessageEnd | Operation],
        request: str,
        posted: MessageEnd | Operation,
    ) -> None:
        if request in pending:
            self.leaked.append(pending.pop(request))
        pending[request] = posted

    def _wait(
        self, rank: int, index: int, wait: Wait, posted: MessageEnd | Operation | None
    ) -> Operation:
        awaits = (posted,) if isinstance(posted, MessageEnd) else ()
        call = posted if isinstance(posted, Operation) else None
        operation = Operation(rank, index, wait, (), awaits, call)
        if posted is None:
            self._add_fault(
                operation,
                f"expected a request that is in flight, got {wait.request!r}, which is not: "
                "post it before, and wait for it once",
            )
        return operation

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
                self._add_unmatched(post)

    def _match_message(self, send: MessageEnd, receive: MessageEnd) -> None:
        if send.message.tag == receive.message.tag:
            if not self._dispute((send, receive)):
                send.partner, receive.partner = receive, send
        else:
            self._add_fault(
                receive,
                f"expected tag {receive.message.tag}, got tag {send.message.tag} from "
                f"{place(send)}: messages match in order and tags do not select them, so post "
                "them in one order on both ranks",
            )

    def _add_unmatched(self, post: MessageEnd) -> None:
        side, verb = ("recv", "from") if post.sends else ("send", "to")
        self._add_fault(
            post,
            f"expected a {side} {verb} rank {post.rank} on rank {post.message.peer} to match, "
            "got none that is left: add it there, or remove this one",
        )

    def _match_collectives(self) -> None:
        calls: dict[tuple[str, tuple[int, ...]], dict[int, list[Operation]]] = {}
        for operation in in_time(self.calls):
            node = operation.instruction
            assert isinstance(node, Collective)
            if operation.rank not in node.group:
                self._add_fault(operation, _NO_MEMBER.format(operation.rank))
                continue
            key = (node.communicator, tuple(sorted(node.group)))
            calls.setdefault(key, {}).setdefault(operation.rank, []).append(operation)
        for (_, members), by_rank in calls.items():
            for match in in_time(zip_longest(*(by_rank.get(rank, []) for rank in members))):
                self._match_collective(members, match)

    def _match_collective(
        self, members: tuple[int, ...], match: tuple[Operation | None, ...]
    ) -> None:
        present = [call for call in match if call is not None]
        first = present[0]
        absent = [rank for rank, call in zip(members, match, strict=True) if call is None]
        if absent:
            self._add_fault(
                first,
                f"expected rank {absent[0]} to make the matching call, got none that is left "
                "there: add it, or take the rank out of the group",
            )
            return
        for call in present:
            wrong = _disagreement(first, call)
            if wrong is not None:
                self._add_fault(call, wrong)
                return
        if not self._dispute(present):
            self.matched_calls.update(dict.fromkeys(present, tuple(present)))

    def _dispute(self, sides: Sequence[MessageEnd | Operation]) -> bool:
        """Add a fault if two sides claim different counts or types of data."""
        nodes = [side.message if isinstance(side, MessageEnd) else side.instruction
                 for side in sides]  # fmt: skip
        claim = disputed(nodes)
        if claim is None:
            return False
        stated = [(side, getattr(node, claim)) for side, node in zip(sides, nodes, strict=True)]
        first, want = next(pair for pair in stated if pair[1] is not None)
        wrong, got = next(pair for pair in stated if pair[1] not in (None, want))
        self._add_fault(
            wrong,
            f"expected {claim} {want} as in {place(first)}, got {got}: "
            "write the same on all of its ranks",
        )
        return True


_NO_MEMBER = "expected a group with rank {0} in it, got one without: add it, or drop the call"


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


def needs(
    flow: Matching, operation: Operation, buffered: bool
) -> Iterable[MessageEnd | Operation | None]:
    """What must have started on other ranks before this operation returns.

    None is something that never starts. A buffered send returns at once.
    """
    if operation.awaits:
        return [post.partner for post in operation.awaits if not (buffered and post.sends)]
    if operation.call is not None:
        return flow.matched_calls.get(operation.call, (None,))
    return (None,) if isinstance(operation.instruction, Wait) else ()
