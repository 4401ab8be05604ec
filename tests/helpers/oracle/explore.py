"""Explores the states of a program without Z3: an independent check of the proofs.

The explorer runs the semantics step by step on sets of terms. A move is one instruction of a rank
(or its start, if it waits), or the delivery of one message whose two sides are posted. No move
disables another. Two moves of different ranks or messages lead to the same state in either order,
unless a block in flight is accessed: then a message may carry the block from before or from after.
Hence one run decides for all if there is no race. `every=True` explores all of them to confirm it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from oracle.counts import wrong_counts
from oracle.machine import Machine
from oracle.properties import STATIC, asked, wrong_coverage, wrong_end
from primepar.schedule.program import Program
from primepar.schedule.properties import PROPERTIES, Verdict, missing_base

MOST_STATES = 200_000


@dataclass(frozen=True)
class Exploration:
    """The results of the runs of a program."""

    asked: frozenset[str]
    """Properties that the program asks."""
    failed: frozenset[str]
    """Those of them that fail."""
    uncounted: frozenset[str]
    """Those of them that need sizes of blocks which the program does not define."""
    stuck: tuple[tuple[int, int], ...]
    """(rank, instruction index) where ranks hang."""
    states: int
    """Number of explored states."""
    ends: int
    """Number of different last states: more than one only if a block in flight is accessed."""
    finished: bool
    """Whether all states were explored within the limit."""

    def verdict(self, name: str) -> Verdict:
        """The verdict on a property in every state; *not asked* where it has no meaning."""
        verdicts = {asked_name: self._alone(asked_name) for asked_name in self.asked}
        return verdicts[name] if missing_base(name, verdicts) is None else "not asked"

    def _alone(self, name: str) -> Verdict:
        """The verdict on a property for itself; after a deadlock it is unknown."""
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
    failed = {name for end in ends for name in end.failed | wrong_end(end)}
    counted, uncounted = wrong_counts(start.names)
    failed |= counted | wrong_coverage(program)
    questions = asked(start.names)
    stuck = sorted({place for end in ends for place in end.stuck()})
    return Exploration(
        questions, frozenset(failed) & questions, frozenset(uncounted) & questions, tuple(stuck),
        states, len(ends), finished,
    )  # fmt: skip


def _one_end(machine: Machine) -> tuple[list[Machine], int, bool]:
    """One run: every rank as far as it goes, and messages as soon as possible."""
    states = 1
    moved = True
    while moved:
        moved = False
        for rank in range(machine.program.ranks):
            while machine.advance(rank):
                states += 1
                moved = True
                _deliver_all(machine)
    return [machine], states, True


def _deliver_all(machine: Machine) -> None:
    while ready := machine.ready():
        machine.deliver(ready[0])


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
    for pair in machine.ready():
        later = machine.copy()
        later.deliver(pair)
        yield later
    for rank in range(machine.program.ranks):
        later = machine.copy()
        if later.advance(rank):
            yield later
