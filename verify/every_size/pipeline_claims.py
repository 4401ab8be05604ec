"""What is claimed of a pipeline in closed form, for all numbers of stages and micro-batches.

Every claim is a condition on integers: stage s of p, micro-batches k and j of M. Z3 is asked for
numbers that break it. All terms are linear, so it decides each claim once for all sizes.

An action starts at the end of the latest action that it waits for, or at 0. By induction over the
starts these are the earliest possible ones, so what the formulas give for them is exact. As they
grow along every wait, no stage waits without end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import z3

from primepar.partition.pipeline.actions import KINDS, ClosedForm, ScheduleName
from primepar.partition.pipeline.formulas import bubble, peak_stashes
from primepar.schedule.expression import evaluate, name

Term = Any
"""A Z3 term; z3 ships no types."""
COVERAGE, ORDER, DEADLOCK, STASHES, BUBBLE = (
    "coverage", "message order", "deadlock-freedom", "stashes", "bubble",
)  # fmt: skip
s, k, j, p, M = (z3.Int(text) for text in ("s", "k", "j", "p", "M"))
DOMAIN = z3.And(p >= 1, M >= 1, s >= 0, s < p, k >= 0, k < M, j >= 0, j < M)


@dataclass(frozen=True)
class SizeClaim:
    """A condition that should hold for all sizes, stages and micro-batches."""

    property: str
    sentence: str
    then: Term
    """It may have the variables of `DOMAIN`."""
    exists: bool = False
    """Whether it has to hold for some k only, given the others."""


class _Choice:
    """A Z3 condition that decides between two terms, as `primepar.where` asks it to."""

    def __init__(self, condition: Term) -> None:
        self.condition = condition

    def __where__(self, then: Any, otherwise: Any) -> Number:
        return Number(z3.If(self.condition, _term(then), _term(otherwise)))


class Number:
    """A Z3 integer on which the formulas of a schedule are evaluated."""

    def __init__(self, term: Term) -> None:
        self.term = term

    def __add__(self, other: Any) -> Number:
        return Number(self.term + _term(other))

    def __sub__(self, other: Any) -> Number:
        return Number(self.term - _term(other))

    def __rsub__(self, other: Any) -> Number:
        return Number(_term(other) - self.term)

    def __mul__(self, other: int) -> Number:
        return Number(self.term * other)

    def __lt__(self, other: Any) -> _Choice:
        return _Choice(self.term < _term(other))

    def __gt__(self, other: Any) -> _Choice:
        return _Choice(self.term > _term(other))

    __radd__, __rmul__ = __add__, __mul__


def _term(value: Any) -> Term:
    return value.term if isinstance(value, Number) else value


@dataclass(frozen=True)
class PipelineClaims:
    """The claims about one schedule."""

    schedule: ScheduleName
    form: ClosedForm

    def _called(self, formula: Callable[..., Any], *arguments: Term) -> Term:
        """A formula of Z3 terms; it is called with names, as a map is."""
        texts = [f"v{number}" for number in range(len(arguments))]
        numbers = dict(zip(texts, map(Number, arguments), strict=True))
        return _term(evaluate(formula(*map(name, texts)), numbers))

    def _place(self, kind: str, stage: Term, micro_batch: Term) -> Term:
        return self._called(lambda *sizes: self.form.place(kind, *sizes), stage, micro_batch, p, M)

    def _start(self, kind: str, stage: Term, micro_batch: Term) -> Term:
        return self._called(lambda *sizes: self.form.start(kind, *sizes), stage, micro_batch, p, M)

    @cached_property
    def all(self) -> tuple[SizeClaim, ...]:
        """All claims, property by property."""
        return tuple(
            claim
            for claims in (
                self._coverage(), self._message_order(), self._waits(), self._earliest(),
                self._kept(), self._idle(),
            )
            for claim in claims
        )  # fmt: skip

    def _coverage(self) -> Iterator[SizeClaim]:
        """3 M actions, each with a place of its own among 3 M places: each occurs once."""
        for kind in KINDS:
            place = self._place(kind, s, k)
            inside = z3.And(place >= 0, place < 3 * M)
            yield SizeClaim(COVERAGE, f"{kind}(k) has one of the 3 M places", inside)
        for number, kind in enumerate(KINDS):
            for other in KINDS[number:]:
                apart = self._place(kind, s, k) != self._place(other, s, j)
                then = z3.Implies(k != j, apart) if kind == other else apart
                yield SizeClaim(COVERAGE, f"{kind}(k) and {other}(j) have different places", then)

    def _message_order(self) -> Iterator[SizeClaim]:
        """Two stages send activations one way and gradients the other, each in one order."""
        for sends, uses, step in (("F", "F", 1), ("W", "B", -1)):
            there = s + step
            sent = self._place(sends, s, k) < self._place(sends, s, j)
            used = self._place(uses, there, k) < self._place(uses, there, j)
            then = z3.Implies(z3.And(there >= 0, there < p), sent == used)
            yield SizeClaim(ORDER, f"what follows {sends} is used in the order of its sends", then)

    def _waits(self) -> Iterator[SizeClaim]:
        """An action ends, one unit after its start, before what waits for it starts."""
        for earlier, later in product(KINDS, KINDS):
            before = self._place(earlier, s, k) < self._place(later, s, j)
            then = z3.Implies(before, self._start(earlier, s, k) + 1 <= self._start(later, s, j))
            yield SizeClaim(DEADLOCK, f"{earlier}(k) ends before a later {later}(j) starts", then)
        for later in KINDS:
            for valid, earlier in self._awaited(later, s, k):
                then = z3.Implies(valid, earlier + 1 <= self._start(later, s, k))
                yield SizeClaim(DEADLOCK, f"{later}(k) starts after what it needs", then)

    def _awaited(self, kind: str, stage: Term, micro_batch: Term) -> Iterator[tuple[Term, Term]]:
        """For each action whose result is needed: whether there is one, and its start."""
        if kind == "F":
            yield stage > 0, self._start("F", stage - 1, micro_batch)
        elif kind == "B":
            yield stage >= 0, self._start("F", stage, micro_batch)
            yield stage + 1 < p, self._start("W", stage + 1, micro_batch)
        else:
            yield stage >= 0, self._start("B", stage, micro_batch)

    def _earliest(self) -> Iterator[SizeClaim]:
        """An action starts at 0, or when one ends that it waits for: needed, or just before it."""
        near = (k - 1, k, k + 1, k - (p - 1 - s) - 1)
        for kind in KINDS:
            start = self._start(kind, s, k)
            ends = [z3.And(valid, earlier + 1 == start)
                    for valid, earlier in self._awaited(kind, s, k)]  # fmt: skip
            for before, micro_batch in product(KINDS, near):
                next_to = self._place(before, s, micro_batch) + 1 == self._place(kind, s, k)
                ended = self._start(before, s, micro_batch) + 1 == start
                ends.append(z3.And(micro_batch >= 0, micro_batch < M, next_to, ended))
            sentence = f"{kind}(k) starts as early as what it waits for allows"
            yield SizeClaim(BUBBLE, sentence, z3.Or(start == 0, *ends))

    def _kept(self) -> Iterator[SizeClaim]:
        """F(k) is the k-th forward: k + 1 less the W before it are the stashes then."""
        finished = self._called(self.form.finished, s, k, p, M)
        most = self._called(self._peak, s, p, M)
        rising = z3.Implies(k < j, self._place("F", s, k) < self._place("F", s, j))
        counted = (self._place("W", s, j) < self._place("F", s, k)) == (j < finished)
        yield SizeClaim(STASHES, "forwards are in the order of the micro-batches", rising)
        yield SizeClaim(STASHES, "the first W, as many as stated, come before F(k)", counted)
        sane = z3.And(finished >= 0, finished <= M)
        yield SizeClaim(STASHES, "the W before F(k) are at most M", sane)
        yield SizeClaim(STASHES, "no more stashes than the formula", k + 1 - finished <= most)
        reached = k + 1 - finished == most
        yield SizeClaim(STASHES, "as many stashes as the formula", reached, exists=True)

    def _peak(self, stage: Any, stages: Any, micro_batches: Any) -> Any:
        return peak_stashes(self.schedule, stage, stages, micro_batches)

    def _idle(self) -> Iterator[SizeClaim]:
        """All is within the time of the work and the bubble, and stage 0 needs all of it."""
        idle = self._called(lambda *sizes: bubble(self.schedule, *sizes), p, M)
        for kind in KINDS:
            start = self._start(kind, s, k)
            within = z3.And(start >= 0, start + 1 <= 3 * M + idle)
            yield SizeClaim(BUBBLE, f"{kind}(k) ends within the work and the bubble", within)
        yield SizeClaim(
            BUBBLE, "stage 0 starts at 0", z3.Implies(s == 0, self._start("F", s, 0) == 0)
        )
        last = z3.Implies(s == 0, self._start("W", s, k) + 1 == 3 * M + idle)
        yield SizeClaim(BUBBLE, "some W of stage 0 ends with the bubble", last, exists=True)
