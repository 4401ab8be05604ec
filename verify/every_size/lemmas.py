"""Lemmas on the maps of a method, asked of Z3 for every number of devices at once.

A method's maps take devices and steps; symbols are put in their place. Properties rest on lemmas: a
lemma that fails refutes them, with the smallest number of devices as the counterexample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import z3

from primepar.schedule.deadline import UnansweredError
from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.z3_question import smallest_model
from primepar.verify.primitive.z3_symbols import Symbol, SymbolSpace, Term, truth
from primepar.verify.report import PropertyResult


@dataclass(frozen=True)
class MapLemma:
    """What holds whenever something is given, and the properties that rest on it."""

    name: str
    properties: tuple[str, ...]
    given: Term
    holds: Term


@dataclass(frozen=True)
class _Answer:
    holds: bool
    seconds: float
    text: str = ""
    place: str | None = None


def prove_lemmas(
    lemmas: Iterable[MapLemma],
    space: SymbolSpace,
    names: Sequence[str],
    properties: Sequence[str],
    note: str,
    end: float,
) -> Iterator[PropertyResult]:
    """Prove lemmas on symbols of these names, and yield the properties that rest on them.

    `note` states for which sizes, `end` is the time at which no more is asked.
    """
    lemmas = list(lemmas)
    answers = {lemma.name: _asked(lemma, space, names, end) for lemma in lemmas}
    for name in properties:
        needed = [lemma.name for lemma in lemmas if name in lemma.properties]
        took = sum(answers[lemma].seconds for lemma in needed)
        wrong = next((answers[lemma] for lemma in needed if not answers[lemma].holds), None)
        if wrong is None:
            yield PropertyResult(name, "proved", took, reason=f"{note}: {', '.join(needed)}")
        elif wrong.place is None:
            yield PropertyResult(name, "unknown", took, reason=wrong.text)
        else:
            yield PropertyResult(name, "refuted", took, counterexample=wrong.text)


def before(first: tuple[Symbol, int], second: tuple[Symbol, int]) -> Term:
    """Whether a (step, position) comes before another one."""
    (step, position), (later_step, later_position) = first, second
    same = terms.And(truth(step == later_step), truth(position < later_position))
    return terms.Or(truth(step < later_step), same)


def symbol(space: SymbolSpace, name: str) -> Symbol:
    """The symbol of a name, from 0 to the number of devices."""
    return space.below(terms.Int(name), space.side("p"))


def _asked(lemma: MapLemma, space: SymbolSpace, names: Sequence[str], end: float) -> _Answer:
    """Ask Z3 for devices, and values of the names, at which a lemma fails."""
    start, solver = perf_counter(), z3.Solver()
    (devices,) = space.sides
    solver.add(devices.term >= 1)
    for name in names:
        solver.add(terms.Int(name) >= 0, terms.Int(name) < devices.term)
    solver.add(lemma.given, terms.Not(lemma.holds))
    try:
        model = smallest_model(solver, space, end)
    except UnansweredError as error:
        return _Answer(False, perf_counter() - start, f"{lemma.name}: {error}")
    took = perf_counter() - start
    if model is None:
        return _Answer(True, took)
    numbers = {
        name: model.eval(term, model_completion=True).as_long()
        for name, term in (("p", devices.term), *((name, terms.Int(name)) for name in names))
    }
    place = ", ".join(f"{name}={number}" for name, number in numbers.items())
    return _Answer(
        False, took, f"expected {lemma.name!r}, got an order without it at {place}", place
    )
