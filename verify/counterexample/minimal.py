"""Reduces a wrong program to the smallest one that is wrong in the same way.

Delta debugging (Zeller and Hildebrandt, 2002) in linear passes, with the verifier as the test.
Halves, then quarters and so on down to single instructions with their partners are left out. They
stay out if the program is still refuted for the same property by the same kind of counterexample.
For example, of a step of 40 instructions that deadlocks, two sends and two receives may remain.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from primepar.schedule.evidence import Counterexample
from primepar.schedule.program import Program
from primepar.verify.counterexample.removals import (
    Item,
    entries,
    units,
    without_entries,
    without_fields,
    without_items,
    without_ranks,
)
from primepar.verify.program import first_violation, verify_program
from primepar.verify.report import PropertyResult

T = TypeVar("T")


class Minimal(Struct, frozen=True):
    """A smaller program that breaks the same property in the same way."""

    program: Program
    sentence: str
    counterexample: Counterexample
    is_smallest: bool
    """Whether nothing more can be left out; False where the time ran out before."""


def minimal(
    program: Program, name: str, buffered: bool = False, seconds: float = 60.0
) -> Minimal | None:
    """Leave out of a program everything that a refuted property does not need, in `seconds`.

    Ranks are renumbered where some are left out. Returns None if the property is not refuted.
    """
    return _Search(program, name, buffered, perf_counter() + seconds).smallest()


def smaller(program: Program) -> Iterator[Program]:
    """Every program that is one step smaller.

    One instruction with its partners is left out, or one rank, one block of `initial` or `final`,
    one field, or one slice of the grid.
    """
    yield from (without_items(program, unit) for unit in units(program))
    for rank in range(program.ranks if program.ranks > 1 else 0):
        with suppress(ValueError):
            yield without_ranks(program, {rank})
    yield from (without_entries(program, {entry}) for entry in entries(program))
    yield from without_fields(program)


FIRST = 10.0
"""Seconds for the first question, whether the program is refuted at all, whatever the limit is."""


class _TimeIsUpError(Exception):
    """The time limit is reached."""


class _Search:
    def __init__(self, program: Program, name: str, buffered: bool, deadline: float) -> None:
        self.program, self.name, self.buffered = program, name, buffered
        self.deadline = deadline
        self.way = self._way(program, FIRST)

    def _way(self, program: Program, least: float = 0.1) -> Hashable | None:
        """The kind of the first violation, without its places; None if there is none."""
        timeout = max(least, self.deadline - perf_counter())
        violation = first_violation(program, self.name, self.buffered, timeout)
        return None if violation is None else violation.key()

    def _result(self) -> PropertyResult | None:
        report = verify_program(self.program, "", self.buffered, FIRST, only=self.name)
        return next(iter(report.properties), None)

    def smallest(self) -> Minimal | None:
        """The smallest program that the passes find in time."""
        if self.way is None:
            return None
        done = False
        try:
            self._focus()
            # Until nothing goes any more: without its last send, a rank's block of `initial` is
            # needless.
            while self._passes():
                pass
            done = True
        except _TimeIsUpError:
            pass
        result = self._result()
        if result is None or result.counterexample is None or result.details is None:
            return None
        return Minimal(self.program, result.counterexample, result.details, done)

    def _focus(self) -> None:
        """Leave out all ranks that the counterexample does not name, and what comes after it."""
        result = self._result()
        counterexample = result.details if result is not None else None
        named = {*counterexample.ranks} if counterexample else set()
        others = [rank for rank in range(self.program.ranks) if rank not in named]
        # Most of a large program is ranks that have nothing to do with it: they go in one question.
        if named and others and self._try(lambda: without_ranks(self.program, others)):
            result = self._result()  # the other ranks have other numbers now
            counterexample = result.details if result is not None else None
        last: dict[int, int] = {}
        for event in counterexample.events if counterexample else ():
            end = len(self.program.programs[event.rank]) if event.index is None else event.index
            last[event.rank] = max(last.get(event.rank, 0), end)
        # What comes behind the last place that the counterexample names has not caused it.
        late = [
            unit
            for unit in units(self.program)
            if all(index > last.get(rank, -1) for rank, index, _ in unit)
        ]
        if late:
            self._try(lambda: self._without_units(late))

    def _passes(self) -> bool:
        """One round of all passes; returns whether something was left out."""
        before = self.program
        self._shrink(self._ranks, lambda ranks: without_ranks(self.program, ranks))
        self._shrink(lambda: units(self.program), self._without_units)
        self._shrink(
            lambda: entries(self.program), lambda some: without_entries(self.program, some)
        )
        self._fields()
        return self.program != before

    def _ranks(self) -> Sequence[int]:
        return range(self.program.ranks) if self.program.ranks > 1 else ()

    def _without_units(self, some: Sequence[frozenset[Item]]) -> Program:
        return without_items(self.program, frozenset().union(*some))

    def _fields(self) -> None:
        while any(self._try(partial(replace, rest)) for rest in without_fields(self.program)):
            pass

    def _shrink(
        self, parts: Callable[[], Sequence[T]], rest: Callable[[Sequence[T]], Program]
    ) -> None:
        """Leave out halves of the parts, then quarters, down to single ones, from the end."""
        # Halves first: where few instructions matter, most go in a few questions. What is left must
        # be wrong in the same way, or the search would end at another mistake.
        size = max(1, len(parts()) // 2)
        while size:
            end = len(parts())
            while end > 0:
                some = parts()[max(0, end - size) : end]
                if some:
                    self._try(partial(rest, some))
                end -= size
            size //= 2

    def _try(self, make: Callable[[], Program]) -> bool:
        """Continue with a smaller program if it is wrong in the same way."""
        if perf_counter() > self.deadline:
            raise _TimeIsUpError
        try:
            program = make()
        # No valid program is left, as where a collective loses all of its members.
        except ValueError:
            return False
        # Right, or wrong in another way: a send whose receive went is no smaller deadlock.
        if self._way(program) != self.way:
            return False
        self.program = program
        return True
