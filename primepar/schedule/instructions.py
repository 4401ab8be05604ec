"""The instructions of programs. `primepar.schedule.program` has their grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from primepar.schedule.signature import (
    LARGEST,
    Coefficient,
    Name,
    Natural,
    Reduction,
    Scale,
    check_scale,
    coefficient,
)

Block = Name
Rank = Natural
Count = Annotated[int, Meta(ge=1, le=LARGEST)]
Ranks = Annotated[tuple[Rank, ...], Meta(min_length=1)]
Blocks = Annotated[tuple[Block, ...], Meta(min_length=1)]
Elements = Rank | Annotated[str, Meta(pattern=r"^[0-9]{1,18}/[1-9][0-9]{0,17}$")]


class Node(
    Struct,
    frozen=True,
    forbid_unknown_fields=True,
    tag_field="op",
    omit_defaults=True,
    gc=False,
    kw_only=True,
):
    """Base of the instructions; the JSON field `op` names which.

    They are trees, so the collector of cycles need not look at them (`gc`).
    """

    source: Name | None = None
    """Where it was written, `train.py:42`; messages name it."""


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


class _Transfer(Node, frozen=True, kw_only=True):
    """What moves data between ranks. All of its sides that state a claim must state the same."""

    count: Rank | None = None
    """Elements of `block`, or of each of `blocks`; with `also`, of all blocks together."""
    dtype: Name | None = None


class _Message(_Transfer, frozen=True):
    peer: Rank
    block: Block
    tag: int = 0
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
    """Start all sends and receives together, return when all are done (ncclGroupStart/End)."""

    body: Annotated[tuple[Send | Recv, ...], Meta(min_length=1)]


class _Collective(_Transfer, frozen=True):
    group: Ranks
    communicator: Name = "world"
    request: Name | None = None

    def __post_init__(self) -> None:
        if len(set(self.group)) != len(self.group):
            raise ValueError(f"expected every rank of a group once, got {list(self.group)}")
        root = getattr(self, "root", None)
        if root is not None and root not in self.group:
            raise ValueError(f"expected a root out of the group {list(self.group)}, got {root}")
        check_scale(getattr(self, "scale", "1"), getattr(self, "reduction", "sum"))
        self._check_names()

    @property
    def scale_value(self) -> Scale:
        """The coefficient of a reduction."""
        return coefficient(getattr(self, "scale", "1"))

    def _check_names(self) -> None:
        """Of what it writes no name may occur twice: the later data would replace the earlier."""
        fields = {"all_gather": "blocks", "all_to_all": "into", "all_reduce": "reduced"}
        field = fields.get(str(self.__struct_config__.tag))
        names = getattr(self, field) if field else ()
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            several = field != "reduced"
            where = f"of {field}" if several else "in block and also"
            fix = "give each member's data a name of its own" if several else "reduce it once"
            raise ValueError(
                f"expected every name {where} once, got {twice} {names.count(twice)} times: {fix}"
            )


class AllReduce(_Collective, frozen=True, tag="all_reduce", kw_only=True):
    """Each block, also those of `also`, becomes `scale` times the reduction over the group."""

    block: Block
    also: tuple[Block, ...] = ()
    reduction: Reduction = "sum"
    scale: Coefficient = "1"

    @property
    def reduced(self) -> Blocks:
        """All blocks of the call, in order; members reduce those at the same place."""
        return (self.block, *self.also)


class Reduce(_Collective, frozen=True, tag="reduce", kw_only=True):
    """The root's block becomes `scale` times the reduction over the group."""

    block: Block
    root: Rank
    reduction: Reduction = "sum"
    scale: Coefficient = "1"


class Broadcast(_Collective, frozen=True, tag="broadcast", kw_only=True):
    """Every member's block becomes the root's."""

    block: Block
    root: Rank


class AllGather(_Collective, frozen=True, tag="all_gather", kw_only=True):
    """`blocks[i]` becomes the i-th member's `block`."""

    block: Block
    blocks: Blocks


class ReduceScatter(_Collective, frozen=True, tag="reduce_scatter", kw_only=True):
    """The i-th member's `block` becomes `scale` times the reduction of everyone's `blocks[i]`."""

    blocks: Blocks
    block: Block
    reduction: Reduction = "sum"
    scale: Coefficient = "1"


class AllToAll(_Collective, frozen=True, tag="all_to_all", kw_only=True):
    """On member j, `into[i]` becomes the i-th member's `blocks[j]`."""

    blocks: Blocks
    into: Blocks


class Barrier(_Collective, frozen=True, tag="barrier"):
    """Return when every member is there."""


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
Collective = (
    AllReduce | Reduce | Broadcast | AllGather | ReduceScatter | AllToAll | Barrier
)  # fmt: skip
Instruction = (
    Compute | Message | Wait | Group | Collective | Alloc | Free | Fetch | Evict | Cut | Join
)  # fmt: skip
LOCAL = frozenset({Wait, Alloc, Free, Fetch, Evict, Cut, Join})
"""Instructions that name neither ranks nor a sub-operator."""


def disputed(sides: Sequence[Instruction]) -> str | None:
    """Name the first claim that two sides of a transfer state differently; None claims nothing."""
    for claim in ("count", "dtype"):
        if len({getattr(side, claim, None) for side in sides} - {None}) > 1:
            return claim
    return None


def named_ranks(instruction: Instruction) -> tuple[int, ...]:
    """Ranks that an instruction names: a peer, or the members of a collective."""
    if isinstance(instruction, Send | Recv | ISend | IRecv):
        return (instruction.peer,)
    if isinstance(instruction, Group):
        return tuple(message.peer for message in instruction.body)
    return tuple(getattr(instruction, "group", ()))
