"""Proves GPipe and 1F1B for all numbers of stages and micro-batches at once.

The places and the starts of the actions are formulas, of which the library makes the orders of the
stages (`primepar.partition.pipeline.actions`). Lemmas about them hold for a stage s of p, and for
micro-batches k and j of M. All terms are linear, so Z3 decides each lemma once for all sizes.
docs/pipelines.md has the argument that joins them to the program of every size.

An action starts at the end of the latest action that it waits for, or at 0. By induction over the
starts these are the earliest possible ones, so what the formulas give for them is exact. As they
grow along every wait, no stage waits without end.

A lemma that does not hold proves nothing. Then the smallest pipeline that breaks the property is
searched (`pipeline_sizes`); without one the property is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement, product
from typing import Any

import z3

from primepar.partition.pipeline.actions import CLOSED_FORMS, KINDS, ClosedForm, ScheduleName
from primepar.partition.pipeline.formulas import bubble, peak_stashes
from primepar.verify.every_size.lemmas import Lemma, Variable, results
from primepar.verify.every_size.pipeline_sizes import (
    BUBBLE,
    COVERAGE,
    DEADLOCK,
    ORDER,
    STASHES,
    smallest_fault,
)
from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.z3_symbols import Symbol, SymbolCondition, SymbolSpace, truth
from primepar.verify.report import PropertyResult

NOTES = {
    COVERAGE: "every stage has F, B and W of each micro-batch once",
    ORDER: "two stages use messages in the order in which they are sent",
    DEADLOCK: "the start of every action is after all that it waits for",
    STASHES: "the most that a stage keeps is the formula",
    BUBBLE: "the earliest starts give the formula",
}
"""Property -> what its proof is of."""

_SPACE = SymbolSpace(("p", "M"))
p, M = _SPACE.sides
s = _SPACE.below(terms.Int("s"), _SPACE.side("p"))
k, j = (_SPACE.below(terms.Int(name), _SPACE.side("M")) for name in ("k", "j"))
SIZES = (Variable.side("p"), Variable.side("M"), Variable(s.term, 0, p.term))
OVER = (*SIZES, Variable(k.term, 0, M.term), Variable(j.term, 0, M.term))


def prove_pipeline(
    schedule: ScheduleName, seconds: float, form: ClosedForm | None = None
) -> Iterator[PropertyResult]:
    """Decide all properties within `seconds`; `form` is another one than that of the schedule."""
    form = form or CLOSED_FORMS[schedule]
    smallest = partial(smallest_fault, schedule=schedule, form=form)
    about = lemmas(schedule, form)
    return results(about, seconds, NOTES, lambda name, _: NOTES[name], smallest)


def lemmas(schedule: ScheduleName, form: ClosedForm) -> list[Lemma]:
    """All lemmas about a schedule, property by property."""
    about = _Schedule(schedule, form)
    return [
        *about.coverage(), *about.message_order(), *about.waits(), *about.kept(), *about.idle()
    ]  # fmt: skip


def implies(condition: SymbolCondition | bool, then: SymbolCondition | bool) -> SymbolCondition:
    """Whether one condition holds wherever another one does."""
    return SymbolCondition(_SPACE, terms.Or(terms.Not(truth(condition)), truth(then)))


def for_some_k(condition: SymbolCondition) -> Any:
    """Whether a condition holds for some micro-batch k, given the others."""
    return z3.Exists([k.term], z3.And(k.term >= 0, k.term < M.term, condition.term))


@dataclass(frozen=True)
class _Schedule:
    schedule: ScheduleName
    form: ClosedForm

    def place(self, kind: str, stage: Symbol, micro_batch: Symbol) -> Symbol:
        return _SPACE.of(self.form.place(kind, stage, micro_batch, p, M))

    def start(self, kind: str, stage: Symbol, micro_batch: Symbol | int) -> Symbol:
        return _SPACE.of(self.form.start(kind, stage, micro_batch, p, M))

    def coverage(self) -> Iterator[Lemma]:
        """3 M actions, each with a place of its own among 3 M places: each occurs once."""
        for kind in KINDS:
            place = self.place(kind, s, k)
            inside = (place >= 0) & (place < 3 * M)
            yield Lemma(f"{kind}(k) has one of the 3 M places", (COVERAGE,), OVER, inside)
        for kind, other in combinations_with_replacement(KINDS, 2):
            apart = self.place(kind, s, k) != self.place(other, s, j)
            # F(k) and F(j) are one action where k = j; F(k) and B(k) never are.
            claim = implies(k != j, apart) if kind == other else apart
            yield Lemma(f"{kind}(k) and {other}(j) have different places", (COVERAGE,), OVER, claim)

    def message_order(self) -> Iterator[Lemma]:
        """Two stages send activations one way and gradients the other, each in one order."""
        # A gradient is sent after W, and B of the stage before uses it: so W is the one that sends.
        for sends, uses, step in (("F", "F", 1), ("W", "B", -1)):
            there = s + step
            sent = self.place(sends, s, k) < self.place(sends, s, j)
            used = self.place(uses, there, k) < self.place(uses, there, j)
            name = f"what follows {sends} is used in the order of its sends"
            claim = implies((there >= 0) & (there < p), implies(sent, used) & implies(used, sent))
            yield Lemma(name, (ORDER,), OVER, claim)

    def waits(self) -> Iterator[Lemma]:
        """An action ends, one unit after its start, before what waits for it starts."""
        for earlier, later in product(KINDS, KINDS):
            before = self.place(earlier, s, k) < self.place(later, s, j)
            # Starts grow along every wait, by one unit at least: a cycle of waits would have to
            # grow round itself.
            claim = implies(before, self.start(earlier, s, k) + 1 <= self.start(later, s, j))
            name = f"{earlier}(k) ends before a later {later}(j) starts"
            yield Lemma(name, (DEADLOCK,), OVER, claim)
        for later in KINDS:
            for what, valid, needed in self.awaited(later):
                claim = implies(valid, needed + 1 <= self.start(later, s, k))
                yield Lemma(f"{later}(k) starts after {what}", (DEADLOCK,), OVER, claim)

    def awaited(self, kind: str) -> Iterator[tuple[str, SymbolCondition | bool, Symbol]]:
        """For each action that one at (s, k) needs: its name, if there is one, and its start."""
        if kind == "F":
            yield "F of the stage before", s > 0, self.start("F", s - 1, k)
        elif kind == "B":
            yield "F of its stage", True, self.start("F", s, k)
            yield "W of the next stage", s + 1 < p, self.start("W", s + 1, k)
        else:
            yield "B of its stage", True, self.start("B", s, k)

    def kept(self) -> Iterator[Lemma]:
        """F(k) is the k-th forward: k + 1 less the W before it are the stashes then."""
        finished = _SPACE.of(self.form.finished(s, k, p, M))
        most = _SPACE.of(peak_stashes(self.schedule, s, p, M))  # type: ignore[arg-type]
        in_order = implies(k < j, self.place("F", s, k) < self.place("F", s, j))
        before = self.place("W", s, j) < self.place("F", s, k)
        # The W before F(k) are those of micro-batches below `finished`, so that their number needs
        # no counting: linear, where a sum over micro-batches would not be.
        counted = implies(before, j < finished) & implies(j < finished, before)
        sane, stashes = (finished >= 0) & (finished <= M), k + 1 - finished
        for name, claim in (
            ("forwards are in the order of the micro-batches", in_order),
            ("the first W, as many as stated, come before F(k)", counted),
            ("the W before F(k) are at most M", sane),
            ("no more stashes than the formula", stashes <= most),
        ):
            yield Lemma(name, (STASHES,), OVER, claim)
        reached = for_some_k(stashes == most)
        yield Lemma("as many stashes as the formula", (STASHES,), SIZES, reached)

    def idle(self) -> Iterator[Lemma]:
        """Starts are the earliest, within the work and the bubble, and stage 0 needs all of it.

        An action starts at 0, or when one ends that it waits for: needed, or just before it.
        """
        # What comes right before an action on its stage is of one of these micro-batches. A wrong
        # choice here proves less, and nothing wrong.
        near = (k - 1, k, k + 1, k - (p - 1 - s) - 1)
        for kind in KINDS:
            start, early = self.start(kind, s, k), self.start(kind, s, k) == 0
            for _, valid, earlier in self.awaited(kind):
                early = early | ((earlier + 1 == start) & valid)
            for before, other in product(KINDS, near):
                next_to = self.place(before, s, other) + 1 == self.place(kind, s, k)
                ended = self.start(before, s, other) + 1 == start
                early = early | ((other >= 0) & (other < M) & next_to & ended)
            name = f"{kind}(k) starts as early as what it waits for allows"
            yield Lemma(name, (BUBBLE,), OVER, early)
        end = 3 * M + _SPACE.of(bubble(self.schedule, p, M))  # type: ignore[arg-type]
        for kind in KINDS:
            start = self.start(kind, s, k)
            within = (start >= 0) & (start + 1 <= end)
            yield Lemma(f"{kind}(k) ends within the work and the bubble", (BUBBLE,), OVER, within)
        at_once = implies(s == 0, self.start("F", s, 0) == 0)
        yield Lemma("stage 0 starts at 0", (BUBBLE,), OVER, at_once)
        last = for_some_k(implies(s == 0, self.start("W", s, k) + 1 == end))
        yield Lemma("some W of stage 0 ends with the bubble", (BUBBLE,), SIZES, last)
