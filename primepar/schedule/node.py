"""What the instructions of a program have in common."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from primepar.schedule.signature import LARGEST, Name, Natural

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


class CountedTransfer(Node, frozen=True, kw_only=True):
    """What moves data between ranks. All of its sides that state a claim must state the same."""

    count: Rank | None = None
    """Elements of `block`, or of each of `blocks`; with `also`, of all blocks together."""
    dtype: Name | None = None
