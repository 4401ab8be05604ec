"""An explorer of programs that runs them: the second opinion beside the proofs, without Z3.

It plays the semantics step by step on sets of terms. Its moves are: one rank goes on by one
instruction (or stops in one that waits), or one message whose two sides are posted is carried
over. There are no wildcards, so no move takes another one's place, and two moves of different
ranks or messages meet in the same state whichever comes first, unless a block in flight is
touched: then a message may carry the block from before or from after. Hence one run answers for
all where there is no race, and `every=True` looks at all of them to show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from primepar.schedule.program import Program
from primepar.schedule.properties import PROPERTIES, Verdict, missing_base
from primepar.verify.explorer.counts import judge_counts
from primepar.verify.explorer.machine import Machine
from primepar.verify.explorer.properties import STATIC, asked, judge_coverage, judge_end

MOST_STATES = 200_000


@dataclass(frozen=True)
class Exploration:
    """What the runs of a program showed."""

    asked: frozenset[str]
    """Properties that the program asks."""
    failed: frozenset[str]
    """Those of them that fail."""
    uncounted: frozenset[str]
    """Those of them for which the program does not tell how many elements its blocks have."""
    stuck: tuple[tuple[int, int], ...]
    """(rank, instruction index) where ranks hang for ever."""
    states: int
    """States that were looked at."""
    ends: int
    """Different last states: more than one only where a block in flight is touched."""
    finished: bool
    """Whether all states were looked at within the limit."""

    def verdict(self, name: str) -> Verdict:
        """Whether a property holds in every state, and has a meaning there."""
        verdicts = {each: self._alone(each) for each in self.asked}
        return verdicts[name] if missing_base(name, verdicts) is None else "not asked"

    def _alone(self, name: str) -> Verdict:
        """Whether a property holds in every state; behind a deadlock nobody knows."""
        if name in self.failed:
            return "refuted"
        seen = name in STATIC or (self.finished and not self.stuck)
        return "proved" if seen and name not in self.uncounted else "unknown"

    @property
    def in_order(self) -> list[str]:
        """The properties that are asked, as a report lists them."""
        return [name for name in PROPERTIES if name in self.asked]

    @property
    def overall(self) -> Verdict:
        """The verdict on all properties together."""
        if self.failed:
            return "refuted"
        known = all(self.verdict(name) == "proved" for name in self.asked)
        return "proved" if known else "unknown"


def explore(
    program: Program, buffered: bool = False, every: bool = False, limit: int = MOST_STATES
) -> Exploration:
    """Run a program: once, or with `every` in all interleavings, up to `limit` states."""
    start = Machine.of(program, buffered)
    ends, states, finished = _all_ends(start, limit) if every else _one_end(start)
    failed = {name for end in ends for name in end.failed | judge_end(end)}
    counted, uncounted = judge_counts(start.names)
    failed |= counted | judge_coverage(program)
    questions = asked(start.names)
    stuck = sorted({place for end in ends for place in end.stuck()})
    return Exploration(
        questions, frozenset(failed) & questions, frozenset(uncounted) & questions, tuple(stuck),
        states, len(ends), finished,
    )  # fmt: skip


def _one_end(machine: Machine) -> tuple[list[Machine], int, bool]:
    """One run: messages as soon as they can, then every rank as far as it goes."""
    states = 1
    moved = True
    while moved:
        moved = False
        for rank in range(machine.program.ranks):
            while machine.go(rank):
                states += 1
                moved = True
                _carry_all(machine)
    return [machine], states, True


def _carry_all(machine: Machine) -> None:
    while ready := machine.ready():
        for channel in ready:
            machine.carry(channel)


def _all_ends(start: Machine, limit: int) -> tuple[list[Machine], int, bool]:
    seen, ends, ready = {start.key()}, [], [start]
    while ready and len(seen) < limit:
        machine = ready.pop()
        following = list(_moves(machine))
        if not following:
            ends.append(machine)
        for later in following:
            key = later.key()
            if key not in seen:
                seen.add(key)
                ready.append(later)
    return ends, len(seen), not ready


def _moves(machine: Machine) -> Iterator[Machine]:
    for channel in machine.ready():
        later = machine.copy()
        later.carry(channel)
        yield later
    for rank in range(machine.program.ranks):
        later = machine.copy()
        if later.go(rank):
            yield later
