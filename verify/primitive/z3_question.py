"""Asks Z3 about a claim: the same expressions, evaluated on Z3 terms with bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter

import z3

from primepar.certify.claims import Claim
from primepar.schedule.deadline import UnansweredError, seconds_left
from primepar.schedule.expression import Number, evaluate, every, negated
from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.claims_on_mesh import Point
from primepar.verify.primitive.z3_symbols import Symbol, SymbolSpace, Term, truth
from primepar.verify.z3_answer import check_by

SLOW = "Z3 did not decide it within its time limit"


class Questions:
    """One solver for all claims about a primitive; each claim has its own scope."""

    def __init__(self, sides: tuple[str, ...]) -> None:
        self.space = SymbolSpace(sides)
        self.solver = z3.Solver()
        self.solver.add(*(side.term >= 1 for side in self.space.sides))

    def counterexample(self, claim: Claim, witnesses: Mapping[str, Number]) -> Point | None:
        """A point at which a claim fails with these expressions; None if there is none.

        Raises `UnansweredError` if Z3 does not decide it in time, `SymbolicError` for arithmetic
        that is not linear.
        """
        values, inside = self._given(claim)
        wrong = (
            [truth(evaluate(negated(every(self._room(claim, witnesses))), values))]
            if claim.witnesses
            else []
        )
        # A witness is a new integer, equal to its expression: so bounds of a witness are those of
        # its axis, and the body has a `%` of a name in place of one of a large term.
        names, equal = dict(values), []
        for name, limit in claim.witnesses:
            room = self.space.of(evaluate(limit, values))
            names[name] = symbol = self._below(name, room)
            value = self.space.of(evaluate(witnesses[name], values)).term
            equal += [symbol.term == value, symbol.term >= 0, symbol.term < room.term]
        wrong.append(terms.And(*equal, terms.Not(truth(evaluate(claim.body, names)))))
        return self._model(terms.And(*inside, terms.Or(*wrong)), values)

    @staticmethod
    def _room(claim: Claim, witnesses: Mapping[str, Number]) -> list[object]:
        return [part for name, limit in claim.witnesses
                for part in (witnesses[name] >= 0, witnesses[name] < limit)]  # fmt: skip

    def _given(self, claim: Claim) -> tuple[dict[str, Symbol], list[Term]]:
        values: dict[str, Symbol] = {}
        inside: list[Term] = []
        for name, limit in claim.given:
            if limit is None:
                values[name] = self.space.exactly(self.space.side(name))
                continue
            room = self.space.of(evaluate(limit, values))
            values[name] = self._below(name, room)
            inside += [terms.Int(name) >= 0, terms.Int(name) < room.term]
        return values, inside

    def _below(self, text: str, room: Symbol) -> Symbol:
        return self.space.below(terms.Int(text), room.high)

    def _model(self, question: Term, values: Mapping[str, Symbol]) -> Point | None:
        # Both sides were one and the same term, so the claim is true without a question.
        if terms.FALSE.eq(question):
            return None
        self.solver.push()
        try:
            self.solver.add(question)
            sides = [side.term for side in self.space.sides]
            model = smallest_model(self.solver, sides, perf_counter() + seconds_left())
        finally:
            self.solver.pop()
        if model is None:
            return None
        return {name: model.eval(value.term, model_completion=True).as_long()
                for name, value in values.items()}  # fmt: skip


def smallest_model(solver: z3.Solver, sizes: Sequence[Term], deadline: float) -> z3.ModelRef | None:
    """A model with the smallest sum of the sizes, each 1 or more; None if there is none.

    The first model of Z3 need not have it, so the sum is bisected. Raises `UnansweredError` if Z3
    does not answer the first question in time.
    """
    answer = check_by(solver, deadline)
    if answer == z3.unknown:
        raise UnansweredError(SLOW)
    if answer == z3.unsat:
        return None
    model, total = solver.model(), terms.Sum([*sizes, terms.IntVal(0)])
    low, high = len(sizes), model.eval(total, model_completion=True).as_long()
    while low < high:
        # Small sums are easy for Z3 and large ones are not, so the bound is doubled from below
        # where a plain bisection would start in the middle of what the first model had.
        middle = min((low + high) // 2, 2 * low)
        solver.push()
        solver.add(total <= middle)
        if check_by(solver, deadline) == z3.sat:
            model = solver.model()
            high = model.eval(total, model_completion=True).as_long()
        else:
            # Also if Z3 does not decide it: the model that is known stays, and may then not be the
            # smallest.
            low = middle + 1
        solver.pop()
    return model
