"""Decisions by values that may differ between ranks: each is also taken the other way.

A script decides by a truth value: `if loss < best`, `if x.isnan().any()`. Where the value is a
rank's own, or came from others, another run may go the other way there. So the script is recorded
again with this one decision turned round. For example, under DDP,

    if batch.sum() < 0:   # a value of this rank's data
        continue          # this rank then leaves out what all others do in backward

rank 0 is recorded once more, going the other way. If it communicates as before and sends what it
sent before, nobody else can notice, and the decision is harmless. Else all ranks are recorded
again, together with it: they hang, or they all agree.

Who decides together? Ranks whose values have one lineage (the same operations on the same data)
cannot go apart: they are turned together. The lineage travels with every message, so it is known
whose data an all-reduced loss has. Where all ranks decide together, and the value is known here,
there is no other way.

A comparison with a constant is turned by another value, and all comparisons of that value follow.
Where a rank that goes the other way sends other values, as a flag of which all take the sum, two of
these ranks, and all of them, are turned together too.

Two more things are decisions that the script does not write down. Where it catches that memory
runs out, that may happen on one rank alone: at the first operation within the `try`, and at the
last one. And a set of strings has another order in each process, as each hashes with its own seed.

Bounds: one value of a rank at a time; of one line and its ranks the first, the last and all;
`MOST_FORKS` of them, and the time limit of the proof. What is left is listed, and the answer is
*unknown*. A rank that raises after the turn is taken as meant so if a `raise` of the script does
it, the line that decides, or a library by `ValueError`, and if it has communicated as before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, combinations, pairwise
from math import inf
from textwrap import shorten
from time import perf_counter
from typing import NamedTuple

from msgspec.structs import replace

from primepar.errors import CaptureError
from primepar.preflight.meaning.evaluate import TermValues
from primepar.preflight.meaning.gradients import gradients
from primepar.preflight.meaning.replicas import ReplicaQuestions
from primepar.preflight.recording import MarkedDecision, RankRecording, Turns, program_of
from primepar.schedule.evidence import Counterexample, InvolvedInstruction
from primepar.schedule.matching import Matches
from primepar.schedule.program import Barrier, Collective, Group, Instruction, Message
from primepar.schedule.transport import Transport
from primepar.verify.program import verify_program
from primepar.verify.report import PropertyResult

NAME = "decisions"
_USUAL_REPAIR = "let all ranks decide alike, by an all_reduce of the flag before"
_CAUSES = {
    "memory": ("memory that runs out on it alone, which it catches", _USUAL_REPAIR),
    "order": ("the order of a set, as each process hashes with a seed of its own", "sort it"),
}
"""What may be otherwise -> how that is stated, and the repair."""
MOST_FORKS = 64
"""Decisions that are taken the other way."""


class ScriptRecorder(NamedTuple):
    """What records a script again."""

    alone: Callable[[int, Turns], RankRecording | None]
    """One rank, among the values that the others gave before; None if it gives other ones."""
    together: Callable[[Mapping[int, Turns]], list[RankRecording]]


class Fork(NamedTuple):
    """Ranks that go the other way together, each at its decision."""

    decisions: dict[int, MarkedDecision]
    values: dict[int, float | None]
    """The number that each decides by; None turns a truth value round."""
    times: int = 0
    """How often all values at its line are turned round, as a loop asks each time; 0 for one."""

    @property
    def turns(self) -> dict[int, Turns]:
        """What to record."""
        if self.times:
            return {rank: {hash(self.line): float(self.times)} for rank in self.decisions}
        return {
            rank: {decided.lineage: self.values[rank]} for rank, decided in self.decisions.items()
        }

    @property
    def lowest(self) -> MarkedDecision:
        """The decision of its lowest rank."""
        return self.decisions[min(self.decisions)]

    @property
    def line(self) -> str:
        """Where its lowest rank decides."""
        return self.lowest.source

    def __str__(self) -> str:
        ranks = ",".join(map(str, sorted(self.decisions)))
        several = "s" if len(self.decisions) > 1 else ""
        received = any(decided.unknown for decided in self.decisions.values())
        whose = "a value that others computed" if received else "a value of its own"
        whose = _CAUSES.get(self.lowest.cause, (whose,))[0]
        how = f" each of {self.times} times" if self.times else ""
        return f"rank{several} {ranks} may go the other way{how} at {self.line}, by {whose}"


def decisions(
    recorded: Sequence[RankRecording],
    recorder: ScriptRecorder,
    seconds: float,
    transport: Transport,
) -> PropertyResult | None:
    """Take the decisions of a program that ends the other way; None where there are none."""
    start = perf_counter()
    forks = list(_forks(recorded))
    left = [
        f"{source}: a library makes a plain number of one that may be another in the next run, so "
        "that what is decided by it is not seen: read it here, and give the library the number"
        for source in dict.fromkeys(source for of_rank in recorded for source in of_rank.lost)
    ]
    if not forks and not left:
        return None
    heard: list[Fork] = []
    """Those that others notice."""
    singles = len(forks)
    for place, fork in enumerate(forks):
        if place == MOST_FORKS or perf_counter() - start > seconds:
            lines = ", ".join(dict.fromkeys(fork.line for fork in forks[place:]))
            left.append(f"{len(forks) - place} of {len(forks)} decisions are left, at {lines}")
            break
        try:
            others = _alone(fork, recorded, recorder)
            if others is None and place < singles and not fork.times:
                heard.append(fork)
            is_heard = others is None
            others = recorder.together(fork.turns) if others is None else others
            wrong = _judged(fork, others, transport, is_heard)
        except CaptureError as error:
            left.append(f"{fork}: {error}")
            continue
        if wrong is not None:
            return replace(wrong, seconds=perf_counter() - start)
        if place == singles - 1:
            forks += _together(heard)
    taken = perf_counter() - start
    if left:
        return PropertyResult(NAME, "unknown", taken, reason="\n".join(left))
    several = "s" if len(forks) > 1 else ""
    reason = f"{len(forks)} decision{several} taken the other way: all ranks still agree"
    return PropertyResult(NAME, "proved", taken, reason=reason)


def _forks(recorded: Sequence[RankRecording]) -> Iterator[Fork]:
    """The decisions that may go the other way: the first and the last of a line and its ranks.

    And all of a line that decides by values of a rank's own: *stop if it was worse twice*.
    """
    alike: dict[int, dict[int, list[MarkedDecision]]] = defaultdict(dict)
    for rank, of_rank in enumerate(recorded):
        for decision in of_rank.decisions:
            alike[decision.lineage].setdefault(rank, []).append(decision)
    of_line: dict[tuple[str, tuple[int, ...]], list[list[Fork]]] = defaultdict(list)
    for by_rank in alike.values():
        known = not any(asked[0].unknown for asked in by_rank.values())
        if len(by_rank) == len(recorded) and known:
            continue
        together = {rank: asked[0] for rank, asked in by_rank.items()}
        forks = [
            Fork(together, dict.fromkeys(together, value))
            for value in other_values(list(chain(*by_rank.values())))
        ]
        if forks:
            of_line[forks[0].line, tuple(together)].append(forks)
    for several in of_line.values():
        yield from several[0]
        if len(several) > 1:
            yield from several[-1]
    for several in of_line.values():
        first = several[0][0]
        if len(several) > 1 and not (first.lowest.unknown or first.lowest.cause):
            yield first._replace(times=len(several))


def other_values(asked: list[MarkedDecision]) -> Iterator[float | None]:
    """Values for which the comparisons of one value come out otherwise, each way once.

    Of `x < 0` and `x < 3` for x = 1, these are -1 and 4: both, and neither.
    """
    compared = [decided for decided in asked if decided.comparison]
    if len(compared) < len(asked):
        yield None
    if not compared:
        return
    constants = sorted({decided.constant for decided in compared if abs(decided.constant) < inf})
    exact = [decided.constant for decided in compared if decided.comparison in ("eq", "ne")]
    between = [(low + high) / 2 for low, high in pairwise(constants)]
    ends = [constants[0] - 1, constants[-1] + 1] if constants else []
    seen = {tuple(decided.holds(compared[0].value) for decided in compared)}
    for value in (*ends, *between, *exact):
        holds = tuple(decided.holds(value) for decided in compared)
        if holds not in seen:
            seen.add(holds)
            yield value


def _together(heard: Sequence[Fork]) -> Iterator[Fork]:
    """Forks of several ranks at once: each two, and one of every rank."""
    first: dict[int, Fork] = {}
    for fork in heard:
        for rank in fork.decisions:
            first.setdefault(rank, fork)
    several = list({id(fork): fork for fork in first.values()}.values())
    groups = [list(pair) for pair in combinations(heard, 2)]
    for group in [several, *groups] if len(several) > 2 else groups:
        ranks = [rank for fork in group for rank in fork.decisions]
        if len(set(ranks)) == len(ranks):
            decided = {rank: one for fork in group for rank, one in fork.decisions.items()}
            values = {rank: one for fork in group for rank, one in fork.values.items()}
            yield Fork(decided, values)


def _alone(
    fork: Fork, recorded: Sequence[RankRecording], recorder: ScriptRecorder
) -> list[RankRecording] | None:
    """What all ranks do where nobody notices that one goes the other way; else None.

    Raises `CaptureError` where it raises in a library: how that ends is not known.
    """
    if len(fork.decisions) > 1:
        return None
    (rank,) = fork.decisions
    deviating = recorder.alone(rank, fork.turns[rank])
    if deviating is None:
        return None
    if deviating.ended:
        if not _is_meant(deviating, fork):
            raise _not_followed(deviating)
        calls = [list(_calls(one.instructions)) for one in (deviating, recorded[rank])]
        return [] if calls[0] == calls[1][: len(calls[0])] else None
    if not _alike(deviating, recorded[rank]):
        return None
    return [*recorded[:rank], deviating, *recorded[rank + 1 :]]


def _is_meant(ended: RankRecording, fork: Fork) -> bool:
    """Whether a rank is meant to raise: by the script, or in a library that checks a value."""
    lines = {decided.source for decided in fork.decisions.values()}
    checks = ended.ended_at in lines or ended.ended.startswith("raises ValueError")
    return ended.ended_by_script or checks


def _not_followed(ended: RankRecording) -> CaptureError:
    return CaptureError(
        f"then it {shorten(ended.ended, 120)} at {ended.ended_at}, and what others do was not "
        "followed: let all ranks go there, or none"
    )


def _judged(
    fork: Fork, others: list[RankRecording], transport: Transport, heard: bool
) -> PropertyResult | None:
    """The refutation of a fork, by what all ranks do then; None where it is harmless."""
    ended = [of_rank for of_rank in others if of_rank.ended]
    for of_rank in ended:
        if not _is_meant(of_rank, fork):
            raise _not_followed(of_rank)
    if (ended and not heard) or not any(of_rank.instructions for of_rank in others):
        return None
    program = program_of(others, fork.line)
    result = PropertyResult("", "proved", 0.0)
    if heard:
        result = verify_program(program, only="deadlock-freedom", transport=transport).properties[0]
    if ended and not _met(result.details, fork):
        if len(fork.decisions) > 1:
            return None
        raise _not_followed(ended[0])
    terms = [of_rank.terms for of_rank in others if of_rank.terms is not None]
    if result.verdict == "proved" and len(terms) == len(others):
        if any(of_rank.claims for of_rank in terms):
            result = gradients(ReplicaQuestions(TermValues(Matches(program), terms), terms))
        result = result if result.verdict == "refuted" else PropertyResult("", "proved", 0.0)
    if result.verdict == "proved":
        return None
    if result.verdict == "unknown":
        raise CaptureError(result.reason or "")
    _check_apart(fork, others)
    sentence = (
        f"{fork}: {_CAUSES.get(fork.lowest.cause, ('', _USUAL_REPAIR))[1]}\n"
        f"  then {result.counterexample}"
    )
    events = result.details.events if result.details is not None else ()
    arrows = result.details.arrows if result.details is not None else ()
    turns = tuple(
        InvolvedInstruction(rank, "decides", role="may go the other way", source=decided.source)
        for rank, decided in fork.decisions.items()
    )
    details = Counterexample("never-done", tuple(fork.decisions), events=events + turns,
                             arrows=arrows)  # fmt: skip
    return PropertyResult(NAME, "refuted", 0.0, counterexample=sentence, details=details)


def _met(details: Counterexample | None, fork: Fork) -> bool:
    """Whether what a rank does before it raises meets calls of others that it does not match."""
    return (
        details is not None
        and details.kind == "mismatch"
        and all(event.index is not None for event in details.events)
        and any(event.rank in fork.decisions for event in details.events)
    )


def _check_apart(fork: Fork, others: Sequence[RankRecording]) -> None:
    """Raise `CaptureError` where another rank decides by what may be the same value.

    A large tensor that one rank sends to another has a lineage of its own there.
    """
    unknown = {decided.unknown for decided in fork.decisions.values()}
    here = {one.lineage for rank in fork.decisions for one in others[rank].decisions}
    for rank, of_rank in enumerate(others):
        meets = any(
            isinstance(node, Message) and node.peer in fork.decisions and (node.count or 0) > 64
            for node in of_rank.instructions
        )
        for decided in of_rank.decisions if meets and rank not in fork.decisions else ():
            if {decided.unknown} != unknown and decided.lineage not in here:
                raise CaptureError(
                    f"rank {rank} decides at {decided.source}, by a value that may hang on the "
                    "same one: let both decide by one number, or send the flag"
                )


def _alike(one: RankRecording, other: RankRecording) -> bool:
    """Whether two recordings of a rank communicate alike, whatever their buffers are called."""
    if one.stopped != other.stopped or len(one.gaps) > len(other.gaps):
        return False
    groups = [[group.members for group in recording.groups] for recording in (one, other)]
    calls = [list(_calls(recording.instructions)) for recording in (one, other)]
    return groups[0] == groups[1] and calls[0] == calls[1]


def _calls(instructions: Sequence[Instruction]) -> Iterator[object]:
    """What a rank communicates and waits for, in order."""
    for node in instructions:
        for part in node.body if isinstance(node, Group) else (node,):
            if isinstance(part, Message | Collective | Barrier):
                names = ("peer", "tag", "group", "root", "reduction", "scale", "count", "dtype",
                         "communicator")  # fmt: skip
                blocks = len(getattr(part, "blocks", ())), getattr(part, "request", None) is None
                yield type(part), blocks, *(getattr(part, name, None) for name in names)
