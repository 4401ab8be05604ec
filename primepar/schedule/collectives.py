"""The collectives of a program: calls that all ranks of a group make together."""

from __future__ import annotations

from primepar.schedule.node import Block, Blocks, CountedTransfer, Rank, Ranks
from primepar.schedule.signature import (
    Coefficient,
    Name,
    Reduction,
    Scale,
    check_scale,
    coefficient,
)

_WRITTEN = {
    "all_gather": "blocks", "all_to_all": "into", "all_reduce": "reduced", "gather": "blocks",
}  # fmt: skip
"""Collective -> its field with several blocks that it writes."""


class _Collective(CountedTransfer, frozen=True):
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
        field = _WRITTEN.get(str(self.__struct_config__.tag))
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


class Gather(_Collective, frozen=True, tag="gather", kw_only=True):
    """On the root, `blocks[i]` becomes the i-th member's `block`; others list no blocks."""

    block: Block
    root: Rank
    blocks: tuple[Block, ...] = ()


class Scatter(_Collective, frozen=True, tag="scatter", kw_only=True):
    """The i-th member's `block` becomes the root's `blocks[i]`; others list no blocks."""

    block: Block
    root: Rank
    blocks: tuple[Block, ...] = ()


Collective = (
    AllReduce | Reduce | Broadcast | AllGather | ReduceScatter | AllToAll | Barrier
    | Gather | Scatter
)  # fmt: skip
