"""What the sides of a message or collective must state alike: types of data, and counts.

A side need not state them: it then agrees with every other. Example: of three members of an
all-gather the first states `count` 4, the second states none, and the third, which states `count`
5, differs from the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from primepar.schedule.collectives import Collective
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
    stated: dict[str, tuple[int, int | str]] = {}
    for position, (_, node) in enumerate(sides):
        for claim, value in (("dtype", node.dtype), ("count", node.count)):
            if value is None:
                continue
            first, want = stated.setdefault(claim, (position, value))
            if want != value:
                return Dispute(claim, first, position, want, value)
    return None
