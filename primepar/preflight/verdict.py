"""The verdict of what was captured: that of its program, unless the script did more than that.

Every rank also has to come to its end, and to create the same groups: `new_group` waits for all
ranks, members or not. A rank that leaves it out,

    if rank in (0, 1):
        pair = dist.new_group([0, 1])  # ranks 2 and 3 never come

is found by the order in which each rank created groups, as no instruction expresses it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from textwrap import shorten

from msgspec.structs import replace

from primepar.preflight.decisions import ScriptRecorder, decisions
from primepar.preflight.meaning.adjoint import adjoint
from primepar.preflight.meaning.evaluate import TermValues
from primepar.preflight.meaning.gradients import gradients
from primepar.preflight.meaning.replicas import ReplicaQuestions, replication
from primepar.preflight.meaning.sums import sums
from primepar.preflight.meaning.terms import RankTerms
from primepar.preflight.recording import GroupCreation, RankRecording, all_gaps
from primepar.schedule.evidence import Counterexample, InvolvedInstruction
from primepar.schedule.matching import Matches
from primepar.schedule.program import AllToAll, Program
from primepar.schedule.transport import RENDEZVOUS, Order, Transport, on_pairs
from primepar.schedule.waits import NEVER, WaitGraph, levels
from primepar.verify.program import verify_program
from primepar.verify.report import PropertyResult, Report, Verdict

MODELLED = "modelled"
"""The property that the program has all that the script did."""
_OF_PREFIXES = ("waiting-cycle", "mismatch")
"""Counterexamples that stay one, whatever comes after their instructions."""
_RULE = (
    "let every rank call new_group for every group in one order, members or not, or pass "
    "use_local_synchronization=True"
)


def verdict_of(
    program: Program,
    recorded: Sequence[RankRecording],
    target: str,
    timeout: float,
    transport: Transport = RENDEZVOUS,
    recorder: ScriptRecorder | None = None,
) -> Report:
    """Prove or refute a captured program, and what its data mean.

    With a gap nothing is proved: the verdict is unknown. A refutation stays one if all of its
    instructions come before the gaps of their ranks. With a `recorder` the decisions of the script
    are taken the other way too.
    """
    report = verify_program(program, target, timeout=timeout, transport=transport)
    terms = [rank.terms for rank in recorded if rank.terms is not None]
    more = list(_endings(recorded))
    if report["deadlock-freedom"].verdict == "proved":
        more += _parts(program, recorded)
    if report["deadlock-freedom"].verdict == "proved" and len(terms) == program.ranks:
        more += captured_properties(program, terms)
        if recorder is not None and not any(result.verdict == "refuted" for result in more):
            decided = decisions(recorded, recorder, timeout, transport)
            more += [decided] if decided is not None else []
    report = Report.of(target, (*report.properties, *more))
    gaps = all_gaps(recorded)
    if not gaps:
        return report
    certain = any(_before_gaps(result, recorded) for result in report.properties)
    verdict: Verdict = "refuted" if certain else "unknown"
    unmodelled = PropertyResult(MODELLED, "unknown", 0.0, reason="\n".join(gaps))
    return replace(report, verdict=verdict, properties=(*report.properties, unmodelled))


def captured_properties(program: Program, terms: Sequence[RankTerms]) -> Iterator[PropertyResult]:
    """Yield those that are asked, of a program that runs to its end.

    Gradients are asked if an optimizer reads some or a parameter was changed, replication if a
    tensor is labelled so, the adjoint if a gradient comes back from another rank.
    """
    values = TermValues(Matches(program), terms)
    parameters = ReplicaQuestions(values, terms)
    if any(
        of_rank.claims
        or of_rank.idle
        or any(parameter.start != parameter.end for parameter in of_rank.trained)
        for of_rank in terms
    ):
        yield gradients(parameters)
    if any(of_rank.replicas for of_rank in terms):
        yield replication(values, terms)
    if any(of_rank.pullbacks or of_rank.traces for of_rank in terms):
        result = adjoint(program, values, terms)
        if result is not None:
            yield result
    if any(call.forward for of_rank in terms for call in of_rank.calls):
        result = sums(program, parameters)
        if result is not None:
            yield result


def _before_gaps(result: PropertyResult, recorded: Sequence[RankRecording]) -> bool:
    """Whether a refutation needs only what ranks did before their first gap."""
    if result.details is None or result.details.kind not in _OF_PREFIXES:
        return False
    return all(
        event.index is not None
        and all(event.index < gap.after for gap in recorded[event.rank].gaps)
        for event in result.details.events
    )


def _endings(recorded: Sequence[RankRecording]) -> Iterator[PropertyResult]:
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


def _parts(program: Program, recorded: Sequence[RankRecording]) -> Iterator[PropertyResult]:
    """Yield a refutation for an all-to-all in which a part has another size at its receiver."""
    matches = Matches(program)
    for rank, of_rank in enumerate(recorded):
        for index, (sent, _) in of_rank.parts.items():
            node = program.programs[rank][index]
            group = list(node.group) if isinstance(node, AllToAll) else []
            for member, other, _ in matches.partners.get((rank, index, 0), ()):
                expected = recorded[member].parts[other][1][group.index(rank)]
                got = sent[group.index(member)]
                if got != expected:
                    sides = ((rank, index), (member, other))
                    nodes = [program.programs[who][which] for who, which in sides]
                    lines = [f" at {node.source}" if node.source else "" for node in nodes]
                    sentence = (
                        f"rank {rank}, instruction {index} (all_to_all){lines[0]}: expected "
                        f"{expected} elements for rank {member}, as it expects in instruction "
                        f"{other}{lines[1]}, got {got}: exchange the sizes of the parts "
                        "before"
                    )
                    events = [
                        InvolvedInstruction(who, "all_to_all", source=node.source)
                        for (who, _), node in zip(sides, nodes, strict=True)
                    ]
                    yield _refuted("parts", sentence, events)
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


def enough(program: Program, transport: Transport) -> Iterator[str]:
    """Yield how many slots would be enough for a program that hangs in this transport."""
    buffered = replace(transport, slots=None)
    if verify_program(program, only="deadlock-freedom", transport=buffered).verdict == "proved":
        slots = fewest_slots(program, transport.order)
        yield f"  it would end with {slots} slot{'' if slots == 1 else 's'} or more"


def fewest_slots(program: Program, order: Order = "free") -> int | None:
    """The fewest slots of a channel with which a program ends; None if no number is enough.

    More slots never make a program hang, so they are found by bisection. The messages and calls of
    the program must have their partners.
    """
    program = on_pairs(program) if order == "peer" else program
    matches = Matches(program)

    def hangs(slots: int | None) -> bool:
        return NEVER in levels(WaitGraph(matches, Transport(slots, order)))

    if hangs(None):
        return None
    slots = range(1 + max(map(len, matches.channels.values()), default=0))
    return bisect_left(slots, True, key=lambda count: not hangs(count))
