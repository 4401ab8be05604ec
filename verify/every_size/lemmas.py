"""Lemmas: what holds for all numbers in their ranges, decided by Z3 once for every size.

A method has a list of them, made of its own formulas with symbols in the place of numbers, and each
of its properties follows from some. For example, at any number p of devices and any two steps k and
k' below p: if a device has the keys of one part at both steps, they are one step.

A lemma without numbers that satisfy what it is given would hold of nothing, and proves nothing: so
Z3 is asked for such numbers first, then for some at which the lemma fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, ClassVar, NamedTuple

import z3

from primepar.schedule.deadline import UnansweredError, deadline
from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.z3_question import SLOW, smallest_model
from primepar.verify.primitive.z3_symbols import Symbol, SymbolCondition, SymbolSpace, Term, truth
from primepar.verify.report import PropertyResult
from primepar.verify.z3_answer import check_by

Statement = Any
"""A condition: a Z3 term, a comparison of symbols, or a plain truth value."""


class Variable(NamedTuple):
    """A number that a lemma is about, from `low` on and below `below` where it has such limits."""

    term: Term
    low: int | None = None
    below: Term | None = None

    @classmethod
    def side(cls, name: str) -> Variable:
        """A side of a `SymbolSpace`, from 1."""
        return cls(terms.Int(f"side {name}"), 1)

    @property
    def name(self) -> str:
        """Its name, without what the symbols of a space put before it."""
        return str(self.term).removeprefix("side ")

    @property
    def range(self) -> list[Term]:
        """That it is within its limits."""
        limits = [] if self.low is None else [self.term >= self.low]
        return limits if self.below is None else [*limits, self.term < self.below]


@dataclass(frozen=True)
class Lemma:
    """What holds for all numbers in their ranges of which something is given."""

    name: str
    properties: tuple[str, ...]
    """Those that need it."""
    over: tuple[Variable, ...]
    """Sizes first."""
    claim: Statement
    given: Sequence[Statement] = ()
    statement: str = ""
    """The lemma in words and formulas, for a table."""

    @property
    def assumptions(self) -> list[Term]:
        """The ranges, and what is given."""
        ranges = [limit for variable in self.over for limit in variable.range]
        return [*ranges, *map(_term, self.given)]


class Failure(NamedTuple):
    """Why a lemma is not proved: numbers at which it does not hold, or no answer."""

    sentence: str
    is_refuted: bool = False


def failure(lemma: Lemma, end: float, sizes: Sequence[Term] = ()) -> Failure | None:
    """Why a lemma is not proved by `end`, a time of `perf_counter`; None if it is.

    Where it does not hold, the sum of the sizes is the smallest that there is.
    """
    solver = z3.Solver()
    solver.add(*lemma.assumptions)
    # *For every step t below 0* holds of nothing: what is assumed must be possible at all.
    given = check_by(solver, end)
    if given == z3.unsat:
        return Failure(f"{lemma.name}: no numbers satisfy what it is given, so it proves nothing")
    solver.add(z3.Not(_term(lemma.claim)))
    try:
        model = smallest_model(solver, sizes, end) if given == z3.sat else None
    except UnansweredError as error:
        return Failure(f"{lemma.name}: {error}")
    if given != z3.sat:
        return Failure(f"{lemma.name}: {SLOW}")
    if model is None:
        return None
    place = ", ".join(
        f"{variable.name}={model.eval(variable.term, model_completion=True)}"
        for variable in lemma.over
    )
    return Failure(f"expected {lemma.name!r}, got formulas without it at {place}", True)


def results(
    lemmas: Iterable[Lemma],
    seconds: float,
    properties: Iterable[str],
    reason: Callable[[str, list[str]], str],
    smallest: Callable[[str], str | None] | None = None,
) -> Iterator[PropertyResult]:
    """Yield the result of each property; no more is asked after `seconds`.

    `reason` states what is proved, of a property and its lemmas. A lemma may fail where nothing
    goes wrong, since it is stronger than the property. So `smallest` searches the smallest sizes at
    which a property does not hold; without any it is unknown. Where there is no such search a
    lemma is what its properties mean, and refutes them by the smallest numbers of Z3.
    """
    end, every = perf_counter() + seconds, list(lemmas)
    failures: dict[int, Failure | None] = {}
    for name in properties:
        start, needed, failed, fault = perf_counter(), [], None, None
        for number, lemma in enumerate(every):
            # A lemma serves several properties, and Z3 is asked once.
            if name in lemma.properties and failed is None:
                needed.append(lemma.name)
                if number not in failures:
                    # Where plain integers are searched anyway, Z3 need not bisect for a small
                    # number.
                    sizes = [] if smallest else [lemma.over[0].term]
                    failures[number] = failure(lemma, end, sizes)
                failed = failures[number]
        # A property without a lemma would be proved by nothing.
        if not needed:
            raise ValueError(f"expected a lemma of {name}, got none")
        if failed is not None and failed.is_refuted:
            # A lemma is stronger than its property: what fails it may do no harm, so a fault has to
            # be met.
            fault = failed.sentence if smallest is None else _searched(smallest, name, end)
        took = perf_counter() - start
        if failed is None:
            yield PropertyResult(name, "proved", took, reason=reason(name, needed))
        elif fault is None:
            yield PropertyResult(name, "unknown", took, reason=failed.sentence)
        else:
            yield PropertyResult(name, "refuted", took, counterexample=fault)


def stated_for(sizes: str) -> Callable[[str, list[str]], str]:
    """The reason that lists the lemmas: `for every number of devices: once, alone`."""
    return lambda _, names: f"for every {sizes}: {', '.join(names)}"


def _searched(smallest: Callable[[str], str | None], name: str, end: float) -> str | None:
    try:
        with deadline(max(end - perf_counter(), 1e-3)):
            return smallest(name)
    except UnansweredError:
        return None


def _term(value: Statement) -> Term:
    return truth(value) if isinstance(value, SymbolCondition | bool) else value


# Lemmas on the maps of a method on p devices


@dataclass(frozen=True)
class Devices:
    """p devices, and names of numbers from 0 to p - 1, which may be devices or steps."""

    names: tuple[str, ...]
    space: ClassVar = SymbolSpace(("p",))

    @property
    def count(self) -> Symbol:
        """The number of devices."""
        return self.space.sides[0]

    @property
    def symbols(self) -> list[Symbol]:
        """A symbol for each name."""
        return [self.space.below(terms.Int(name), self.space.side("p")) for name in self.names]

    @property
    def over(self) -> tuple[Variable, ...]:
        """What the lemmas are about."""
        p = Variable.side("p")
        return (p, *(Variable(terms.Int(name), 0, p.term) for name in self.names))

    def of(self, function: Callable[..., Any]) -> Callable[..., Symbol]:
        """A map of a method, which takes the number of devices last, without it."""
        return lambda *numbers: self.space.of(function(*numbers, self.count))


def before(first: tuple[Symbol, int], second: tuple[Symbol, int]) -> Statement:
    """Whether a (step, position) comes before another one."""
    (step, position), (later_step, later_position) = first, second
    return (step < later_step) | ((step == later_step) & (position < later_position))
