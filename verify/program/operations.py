"""The operations of a rank: its instructions, with the messages that they start and await."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import get_args

from primepar.schedule.program import (
    Collective,
    Group,
    Instruction,
    IRecv,
    ISend,
    Message,
    Program,
    Recv,
    Send,
    Wait,
    messages_of,
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
    request: str | None = None
    """What a wait for it names; None where it is not posted."""
    number: int = 0
    """Its place in its group."""
    partner: MessageEnd | None = None
    """The other side; None where nothing matches it."""

    @property
    def sends(self) -> bool:
        """Whether this is the sender's side."""
        return isinstance(self.message, Send | ISend)

    def __str__(self) -> str:
        return _on_rank(self.index, self.message)


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
        """Whether it is a call of a collective, or a group, that a wait completes."""
        node = self.instruction
        has_request = getattr(node, "request", None) is not None
        return has_request and (type(node) in COLLECTIVES or type(node) is Group)

    @property
    def call(self) -> Operation | None:
        """The call of a collective that it completes: its own, or the posted one."""
        return self if type(self.instruction) in COLLECTIVES and not self.posts else self.posted

    @property
    def blocks(self) -> bool:
        """Whether it may have to wait for another rank before it returns."""
        return type(self.instruction) in _BLOCKING and not self.posts

    def __str__(self) -> str:
        return _on_rank(self.index, self.instruction)


def _on_rank(index: int, instruction: Instruction) -> str:
    line = "" if instruction.source is None else f" at {instruction.source}"
    return f"instruction {index} ({instruction_line(instruction)}){line}"


def place(item: MessageEnd | Operation) -> str:
    """How messages name a place: `rank 0, instruction 3 (send X -> 1) at train.py:42`."""
    return f"rank {item.rank}, {item}"


@dataclass
class RankOperations:
    """The operations of one rank, from its instructions.

    A request without a wait gets one after the last instruction, and is listed in `leaked`; waits
    for what is not posted are in `unposted`.
    """

    program: Program
    rank: int
    operations: list[Operation] = field(default_factory=list)
    leaked: list[MessageEnd | Operation] = field(default_factory=list)
    unposted: list[Operation] = field(default_factory=list)
    _pending: dict[str, MessageEnd | Operation] = field(default_factory=dict)

    @classmethod
    def of(cls, program: Program, rank: int) -> RankOperations:
        """Read the instructions of a rank."""
        read = cls(program, rank)
        read.operations += read._operations()
        return read

    def _operations(self) -> Iterator[Operation]:
        rank, instructions = self.rank, self.program.programs[self.rank]
        for index, instruction in enumerate(in_time(instructions)):
            if type(instruction) in LOCAL:
                yield Operation(rank, index, instruction)
            elif isinstance(instruction, Wait):
                yield self._wait(index, instruction, self._pending.pop(instruction.request, None))
            else:
                yield self._started(index, instruction)
        self.leaked += self._pending.values()
        for request, posted in self._pending.items():
            yield self._wait(len(instructions), Wait(request), posted)

    def _started(self, index: int, instruction: Instruction) -> Operation:
        request: str | None = getattr(instruction, "request", None)
        posts = tuple(
            [
                MessageEnd(self.rank, index, message, request, number)
                for number, message in enumerate(messages_of(instruction))
            ]
        )
        operation = Operation(self.rank, index, instruction, posts, () if request else posts)
        if request is not None:
            if request in self._pending:
                self.leaked.append(self._pending.pop(request))
            alone = isinstance(instruction, ISend | IRecv)
            self._pending[request] = posts[0] if alone else operation
        return operation

    def _wait(self, index: int, wait: Wait, posted: MessageEnd | Operation | None) -> Operation:
        if isinstance(posted, MessageEnd):
            return Operation(self.rank, index, wait, (), (posted,))
        if posted is not None and posted.starts:
            return Operation(self.rank, index, wait, (), posted.starts)
        operation = Operation(self.rank, index, wait, (), (), posted)
        if posted is None:
            self.unposted.append(operation)
        return operation
