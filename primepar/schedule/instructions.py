"""The instructions of programs. `primepar.schedule.program` has their grammar."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from primepar.schedule.collectives import Collective
from primepar.schedule.node import Block, Blocks, CountedTransfer, Node, Rank
from primepar.schedule.signature import (
    Coefficient,
    Name,
    Natural,
    Scale,
    check_scale,
    coefficient,
)


class Compute(Node, frozen=True, tag="compute"):
    """Add a product of the reads, times `scale`, to a block that starts at zero if not there."""

    reads: Blocks
    accumulates: Block
    phase: Name | None = None
    sub_operator: dict[Name, Rank] | None = None
    scale: Coefficient = "1"
    again: bool = False

    def __post_init__(self) -> None:
        if (self.phase is None) != (self.sub_operator is None):
            raise ValueError("expected phase and sub_operator together, or neither for an addition")
        if self.again and self.phase is None:
            raise ValueError("expected no addition to be computed again: leave again out")
        check_scale(self.scale, "sum")

    @property
    def scale_value(self) -> Scale:
        """The coefficient of what is added."""
        return coefficient(self.scale)


class _Message(CountedTransfer, frozen=True):
    peer: Rank
    block: Block
    tag: Natural = 0
    communicator: Name = "world"


class Send(_Message, frozen=True, tag="send"):
    """Send and return when the receiver has it."""


class Recv(_Message, frozen=True, tag="recv"):
    """Receive and return when it is here."""


class ISend(_Message, frozen=True, tag="isend", kw_only=True):
    """Post a send; the block must stay as it is until its wait."""

    request: Name


class IRecv(_Message, frozen=True, tag="irecv", kw_only=True):
    """Post a receive; the block must not be touched until its wait."""

    request: Name


class Wait(Node, frozen=True, tag="wait"):
    """Return when the posted message is done."""

    request: Name


class Group(Node, frozen=True, tag="group"):
    """Start all sends and receives together, return when all are done (ncclGroupStart/End).

    With a request it returns at once, and one wait finishes all of them.
    """

    body: Annotated[tuple[Send | Recv, ...], Meta(min_length=1)]
    request: Name | None = None


class Alloc(Node, frozen=True, tag="alloc"):
    """Make a block of zeros."""

    block: Block


class Free(Node, frozen=True, tag="free"):
    """Give a block's memory back."""

    block: Block


class Fetch(Node, frozen=True, tag="fetch"):
    """Move a block from host to device memory."""

    block: Block


class Evict(Node, frozen=True, tag="evict"):
    """Move a block from device to host memory."""

    block: Block


class Cut(Node, frozen=True, tag="cut"):
    """Make blocks of the parts of a block, which stays; in place they take its memory."""

    block: Block
    blocks: Blocks
    in_place: bool = False


class Join(Node, frozen=True, tag="join"):
    """Make a block of its parts, which stay; in place it takes their memory."""

    blocks: Blocks
    block: Block
    in_place: bool = False


Message = Send | Recv | ISend | IRecv
Instruction = (
    Compute | Message | Wait | Group | Collective | Alloc | Free | Fetch | Evict | Cut | Join
)  # fmt: skip
LOCAL = frozenset({Wait, Alloc, Free, Fetch, Evict, Cut, Join})
"""Instructions that name neither ranks nor a sub-operator."""
_MESSAGES = frozenset({Send, Recv, ISend, IRecv, Group})


def messages_of(instruction: Instruction) -> tuple[Message, ...]:
    """The messages that an instruction posts."""
    if isinstance(instruction, Group):
        return instruction.body
    return (instruction,) if isinstance(instruction, Message) else ()


def named_ranks(instruction: Instruction) -> tuple[int, ...]:
    """Ranks that an instruction names: a peer, or the members of a collective."""
    if type(instruction) in _MESSAGES:
        return tuple(message.peer for message in messages_of(instruction))
    return tuple(getattr(instruction, "group", ()))
