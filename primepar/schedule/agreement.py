"""What the sides of a message or collective must state alike: types of data, and counts.

A side need not state them. It may state the elements of each piece of data that moves: `count` for
all pieces alike, or `counts` for the pieces of each member. Sides agree if no two of them state
different values for one piece. Example: the root of a gather lists `counts` (3, 4); the second
member states `count` 5 for its block, and differs from the root.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from primepar.schedule.collectives import (
    AllGather,
    AllToAll,
    Collective,
    Gather,
    ReduceScatter,
    Scatter,
)
from primepar.schedule.instructions import Message

Side = tuple[int, Message | Collective]
"""A rank, and what it calls or posts."""


class Dispute(NamedTuple):
    """A claim that two sides, given by their positions, state differently."""

    claim: str
    first: int
    second: int
    want: int | str
    got: int | str


def dispute(sides: Sequence[Side]) -> Dispute | None:
    """Return the first claim on which two sides differ; None where all agree."""
    if all(node.count is None and node.dtype is None and
           getattr(node, "counts", None) is None for _, node in sides):  # fmt: skip
        return None
    stated: dict[str, tuple[int, int | str]] = {}
    for position, (rank, node) in enumerate(sides):
        for claim, value in _claims(node, rank):
            first, want = stated.setdefault(claim, (position, value))
            if want != value:
                return Dispute(claim, first, position, want, value)
    return None


def _claims(node: Message | Collective, rank: int) -> Iterator[tuple[str, int | str]]:
    """Yield what a side states, and of which piece."""
    if node.dtype is not None:
        yield "dtype", node.dtype
    if isinstance(node, AllToAll):
        for member, sent in zip(node.group, _each(node, node.counts), strict=False):
            yield f"count from rank {rank} to rank {member}", sent
        for member, gotten in zip(node.group, _each(node, node.into_counts), strict=False):
            yield f"count from rank {member} to rank {rank}", gotten
    elif isinstance(node, Gather | Scatter | AllGather | ReduceScatter):
        alone = isinstance(node, Gather | Scatter) and node.root != rank
        if node.count is not None and (alone or node.counts is not None):
            yield f"count of rank {rank}", node.count
        if not alone:
            for member, count in zip(node.group, _each(node, node.counts), strict=False):
                yield f"count of rank {member}", count
    elif node.count is not None:
        yield "count", node.count


def _each(node: Collective, counts: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the elements of each member's piece; nothing where they are not stated."""
    if counts is None and node.count is not None:
        return (node.count,) * len(node.group)
    return counts or ()
