"""What was recorded of a script: the instructions of each rank, each with its line.

A gap is something that the script did and a program cannot express, for example a branch on a value
that another rank computed. A recording with a gap proves nothing, as the script may do other things
than it did here.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from primepar.errors import CaptureError
from primepar.preflight.meaning.terms import RankTerms
from primepar.schedule.program import Instruction, Program


class Gap(Struct, frozen=True):
    """Something that no instruction expresses, and where the script did it."""

    source: str
    """A place like `train.py:42`."""
    what: str
    """Goes on after `the script`: `decides by a value that other ranks computed`."""
    after: int = 0
    """Instructions that the rank had recorded before."""


_CORRECT = "correct it there, or give the script its arguments after its name"
_NO_GPU = (
    "preflight has no GPU: leave --device cpu out, or let the script choose the CPU where it needs "
    "more of a GPU than is pretended"
)


class GroupCreation(Struct, frozen=True, array_like=True):
    """A call of `new_group`, which every rank has to make."""

    members: tuple[int, ...]
    source: str


Turns = Mapping[int, float | None]
"""Lineage of a value -> the number that it has, or None for a truth value that is turned round.

Hash of a line -> how often what it decides first is turned round, whatever value that is.
"""


class MarkedDecision(Struct, frozen=True, array_like=True):
    """A truth value by which a script went on, and that may be another one elsewhere.

    `value < constant`, for the comparison `lt`, or a truth value alone.
    """

    source: str
    lineage: int
    """How the value was computed; equal numbers on two ranks mean alike."""
    unknown: bool
    """Whether the true value is not known here, as other ranks computed it."""
    comparison: str = ""
    constant: float = 0.0
    value: float = 0.0
    """The number that is compared; of a truth value alone, 1 where it is true."""
    cause: Literal["", "memory", "order"] = ""
    """What a run may do otherwise, if not a value: memory runs out, or a set has another order."""

    def holds(self, value: float) -> bool:
        """Whether the comparison holds for another value."""
        return bool(getattr(operator, self.comparison)(value, self.constant))


class RankRecording(Struct):
    """What one rank did, in order."""

    instructions: list[Instruction] = []
    gaps: list[Gap] = []
    terms: RankTerms | None = None
    """What its gradients are made of."""
    stopped: bool = False
    """Whether the rank hangs in its last instruction, as a value never came."""
    decisions: list[MarkedDecision] = []
    lost: list[str] = []
    """Lines at which a library made a plain number of one that may be another elsewhere."""
    last: MarkedDecision | None = None
    """The decision that it made last, if the true value of that is unknown."""
    groups: list[GroupCreation] = []
    """The groups that it created, in order."""
    parts: dict[int, tuple[list[int], list[int]]] = {}
    """Instruction of an all-to-all -> elements for each member, and those from each."""
    ended: str = ""
    """Why it ended early: `raises ValueError: no way`, or `ends by signal 11`."""
    ended_at: str = ""
    """The line where it did."""
    ended_by_script: bool = False
    """Whether a `raise`, an `assert` or an exit of the script did that, or memory that ran out."""
    uncomputed: str = ""
    """The first line at which a large tensor is not computed."""
    pretended: dict[str, str] = {}
    """What was asked of a GPU that is not there, and the first line that did."""


def program_of(ranks: Sequence[RankRecording], script: str) -> Program:
    """Return the program of all ranks. Raises `CaptureError` if no rank communicated."""
    for place, rank in enumerate(ranks):
        no_gpu = any(name in rank.ended for name in ("CUDA", "NVIDIA", "accelerator"))
        if rank.ended and (no_gpu or not any(other.instructions for other in ranks)):
            where = f" at {rank.ended_at}" if rank.ended_at else ""
            advice = _NO_GPU if no_gpu else _CORRECT
            raise CaptureError(
                f"{script}: expected rank {place} to run to its end, got that it "
                f"{rank.ended}{where}: {advice}"
            )
    if not any(rank.instructions or rank.groups for rank in ranks):
        raise CaptureError(
            f"{script}: expected a script that communicates through torch.distributed, got no call "
            f"on any of {len(ranks)} ranks: call its training step at the top level"
        )
    return Program(
        format="primepar-program",
        version=1,
        ranks=len(ranks),
        programs=tuple(tuple(rank.instructions) for rank in ranks),
    )


def all_gaps(ranks: Sequence[RankRecording]) -> list[str]:
    """Return the gaps as sentences, each place and kind once, with the first rank that has it."""
    first: dict[tuple[str, str], int] = {}
    for rank, recorded in enumerate(ranks):
        for gap in recorded.gaps:
            first.setdefault((gap.source, gap.what), rank)
    return [f"{source}: rank {rank} {what}" for (source, what), rank in first.items()]


def all_pretended(ranks: Sequence[RankRecording]) -> dict[str, str]:
    """Return what ranks asked of GPUs that are not there, each with the first line that did."""
    first: dict[str, str] = {}
    for recorded in ranks:
        first = recorded.pretended | first
    return first
