"""What every rank also has to do: come to its end, and create the same groups.

For example, `new_group` waits for all ranks, members or not. A rank that leaves it out,

    if rank in (0, 1):
        pair = dist.new_group([0, 1])  # ranks 2 and 3 never come

is found by the order in which each rank created groups, as no instruction expresses it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from textwrap import shorten

from primepar.preflight.recording import GroupCreation, RankRecording
from primepar.schedule.counterexample import Counterexample, InvolvedInstruction
from primepar.verify.report import PropertyResult

_RULE = (
    "let every rank call new_group for every group in one order, members or not, or pass "
    "use_local_synchronization=True"
)


def endings(recorded: Sequence[RankRecording]) -> Iterator[PropertyResult]:
    """Yield a refuted property for ranks that raise or die, and one for groups that differ."""
    wrong = [(rank, of_rank) for rank, of_rank in enumerate(recorded) if of_rank.ended]
    if wrong:
        rank, first = wrong[0]
        where = f" at {first.ended_at}" if first.ended_at else ""
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        sentence = f"rank {rank}{more} {shorten(first.ended, 300)}{where}: correct it there"
        events = [
            InvolvedInstruction(
                rank, of_rank.ended.partition(":")[0], wrong=True, source=of_rank.ended_at or None
            )
            for rank, of_rank in wrong
        ]
        yield _refuted("runs", sentence, events)
    yield from _creations(recorded)


def _creations(recorded: Sequence[RankRecording]) -> Iterator[PropertyResult]:
    """Compare the groups of each rank with those of the first one that came to its end."""
    whole = [rank for rank, of_rank in enumerate(recorded) if not _cut(of_rank)]
    first = whole[0] if whole else 0
    for rank, of_rank in enumerate(recorded):
        pairs = zip_longest(recorded[first].groups, of_rank.groups)
        for place, (one, other) in enumerate(pairs):
            if (one is None and _cut(recorded[first])) or (other is None and _cut(of_rank)):
                break
            if one is None or other is None or one.members != other.members:
                sides = sorted([(first, one), (rank, other)], key=lambda side: side[1] is None)
                text = " and ".join(f"rank {who} {_creates(what)}" for who, what in sides)
                events = [
                    InvolvedInstruction(who, _creates(what, ""), source=what.source)
                    for who, what in sides
                    if what is not None
                ]
                sentence = f"{text} as group {place + 1}: {_RULE}"
                yield _refuted("groups", sentence, events)
                return


def _cut(recording: RankRecording) -> bool:
    """Whether a recording ends before its script does."""
    return recording.stopped or bool(recording.ended)


def _creates(creation: GroupCreation | None, where: str = " at ") -> str:
    if creation is None:
        return "creates none"
    members = ",".join(map(str, creation.members[:8])) + ",..." * (len(creation.members) > 8)
    return f"creates a group of ranks {members}" + (where and where + creation.source)


def _refuted(name: str, sentence: str, events: list[InvolvedInstruction]) -> PropertyResult:
    ranks = tuple(event.rank for event in events)
    details = Counterexample("never-done", ranks, events=tuple(events))
    return PropertyResult(name, "refuted", 0.0, counterexample=sentence, details=details)
