"""Follows an expression for all values of its names at once, case by case, as a certificate says.

Names stand for any whole numbers within their ranges. An expression is evaluated to a `Form`, a
polynomial in the names. Wherever two forms are compared, the certificate has an answer: only one
outcome is possible, with factors that add what is known up to a contradiction (Farkas' lemma), or
both are, and both are followed. A claim that holds at the end of every case holds for all values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from primepar.errors import ClaimError
from primepar.schedule.expression import Condition, Expression
from primepar.schedule.polynomial_form import Form, Term

MOST_QUOTIENTS = 16
"""Multiples of a divisor that are tried for the quotient."""
MOST_CASES = 20_000
"""Cases of one claim that are followed."""


class Answer(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Whether a form is 0 or more: both, or only one, as the opposite contradicts what is known.

    `factors` has (place, factor), in order: each times what is known at that place, -1 being the
    opposite, is added up.
    """

    outcome: Literal["both", "yes", "no"]
    factors: tuple[tuple[int, int], ...] = ()


Taken = tuple[bool, bool]
"""Whether a form was taken to be 0 or more, and whether it could be otherwise."""


class Case:
    """One way through a claim: what is known in it, and what was decided.

    `known` are forms that are 0 or more. Equations are not listed there: each is solved for one of
    its names, which is then replaced wherever it occurs.
    """

    def __init__(self, taken: Sequence[Taken], answers: Answers) -> None:
        self.known: list[Form] = []
        self.solved: dict[str, Form] = {}
        self.taken, self.answers = list(taken), answers
        self._ready = list(taken)
        self._decided: dict[frozenset[tuple[Term, int]], bool] = {}
        self._values: dict[int, tuple[Any, Form]] = {}
        self._quotients = 0

    def variable(self, name: str, first: int, limit: Form | None = None) -> Form:
        """A name for any whole number from `first` on, below a limit."""
        one = Form.named(name)
        self.known.append(one.plus(Form.of(-first)))
        if limit is not None:
            self.known.append(limit.plus(one, -1).plus(Form.of(-1)))
        return one

    def reduced(self, form: Form) -> Form:
        """The form without the names that are solved for."""
        for name, value in self.solved.items():
            if any(name in term for term in form.terms):
                form = form.replaced(name, value)
        return form

    # Decisions

    def decide(self, form: Form) -> bool:
        """Whether a form is 0 or more."""
        form = self.reduced(form)
        if form.constant is not None:
            return form.constant >= 0
        opposite = form.opposite()
        for one, outcome in ((form, True), (opposite, False)):
            if one.key in self._decided:
                return self._decided[one.key] == outcome
        if self._ready:
            outcome, is_open = self._ready.pop(0)
        else:
            outcome, is_open = self.answers(self, form)
            self.taken.append((outcome, is_open))
        self._decided[form.key] = outcome
        if is_open:
            self.known.append(form if outcome else opposite)
        return outcome

    def equal(self, one: Form, other: Form) -> bool:
        """Whether two forms are equal; if so one name is solved for."""
        form = self.reduced(one.plus(other, -1))
        if not (self.decide(form) and self.decide(Form({}).plus(form, -1))):
            return False
        self._solve(form)
        return True

    def _solve(self, form: Form) -> None:
        """Solve an equation of names for the last that has the factor 1 or -1."""
        linear = all(len(term) < 2 for term in form.terms)
        units = sorted(term[0] for term, factor in form.terms.items() if term and abs(factor) == 1)
        if linear and units:
            name = units[-1]
            factor = form.terms[name,]
            rest = form.plus(Form({(name,): -factor}))
            value = Form({}).plus(rest, -factor)
            self.solved = {each: old.replaced(name, value) for each, old in self.solved.items()}
            self.solved[name] = value

    # Expressions

    def value(self, node: Any, names: Mapping[str, Form]) -> Form:
        """The form of an expression. Raises `ClaimError` for what has none."""
        if isinstance(node, int):
            return Form.of(node)
        if not isinstance(node, Expression):
            raise ClaimError(f"expected whole numbers in a map, got {node!r}")
        if node.operator == "name":
            return names[node.parts[0]]
        if id(node) not in self._values:
            self._values[id(node)] = node, self._value(node, names)
        return self._values[id(node)][1]

    def _value(self, node: Expression, names: Mapping[str, Form]) -> Form:
        if node.operator == "where":
            condition, then, otherwise = node.parts
            return self.value(then if self.holds(condition, names) else otherwise, names)
        one, *others = (self.value(part, names) for part in node.parts)
        match node.operator:
            case "+" | "-":
                return one.plus(others[0], 1 if node.operator == "+" else -1)
            case "neg":
                return Form({}).plus(one, -1)
            case "*":
                return one.times(others[0])
            case "//" | "%":
                return self.divided(one, others[0])[node.operator == "%"]
        raise ClaimError(f"expected +, -, *, // and % in a map, got {node.operator}")

    def holds(self, node: Any, names: Mapping[str, Form]) -> bool:
        """Whether a condition holds; of `&` and `|` no more is asked than is needed."""
        if isinstance(node, bool):
            return node
        assert isinstance(node, Condition)
        if node.operator == "~":
            return not self.holds(node.parts[0], names)
        if node.operator in ("&", "|"):
            parts = (self.holds(part, names) for part in node.parts)
            return all(parts) if node.operator == "&" else any(parts)
        one, other = (self.value(part, names) for part in node.parts)
        if node.operator in ("==", "!="):
            return self.equal(one, other) == (node.operator == "==")
        if node.operator in ("<=", ">"):
            one, other = other, one
        return self.decide(one.plus(other, -1)) == (node.operator in (">=", "<="))

    def divided(self, form: Form, divisor: Form) -> tuple[Form, Form]:
        """Quotient and remainder: case by case the quotient or the remainder is a plain number."""
        form, divisor = self.reduced(form), self.reduced(divisor)
        if divisor.constant is not None:
            return self._divided_by_number(form, divisor.constant)
        if not self.decide(divisor.plus(Form.of(-1))):
            raise ClaimError("expected % and // by 1 or more in a map")
        rest, quotient, step = form, 0, 1 if self.decide(form) else -1
        for _ in range(MOST_QUOTIENTS):
            below = not self.decide(rest.plus(divisor, -1)) if step > 0 else self.decide(rest)
            if below:
                return Form.of(quotient), rest
            quotient, rest = quotient + step, rest.plus(divisor, -step)
        raise ClaimError(f"expected an index below {MOST_QUOTIENTS} sides left of % or //")

    def _divided_by_number(self, form: Form, divisor: int) -> tuple[Form, Form]:
        """A new name for the quotient; the remainder is one of the numbers below the divisor."""
        if divisor < 1:
            raise ClaimError("expected % and // by 1 or more in a map")
        rest = form.terms.get((), 0) % divisor
        if any(factor % divisor for term, factor in form.terms.items() if term):
            self._quotients += 1
            quotient = Form.named(f"quotient {self._quotients}")
            left = form.plus(quotient, -divisor)
            self.known += [left, Form.of(divisor - 1).plus(left, -1)]
            self.quotient(quotient, form, divisor)
            rest = next((at for at in range(divisor) if self.equal(left, Form.of(at))), -1)
            if rest < 0:
                raise ClaimError("expected a remainder below the divisor, got none")
            return quotient, Form.of(rest)
        whole = {term: factor // divisor for term, factor in form.terms.items() if term}
        return Form({**whole, (): (form.terms.get((), 0) - rest) // divisor}), Form.of(rest)

    def quotient(self, name: Form, form: Form, divisor: int) -> None:
        """Called for every new name of a quotient."""


Answers = Callable[[Case, Form], Taken]


def contradicts(case: Case, opposite: Form, answer: Answer) -> bool:
    """Whether forms that are 0 or more, times factors of 1 or more, add up to less than 0."""
    total, before = Form({}), -2
    for place, factor in answer.factors:
        if factor < 1 or not before < place < len(case.known):
            return False
        before = place
        known = case.known[place] if place >= 0 else opposite
        total = total.plus(case.reduced(known).tightened(), factor)
    return total.constant is not None and total.constant < 0


def cases(given: Sequence[Answer]) -> Iterator[Case]:
    """All cases that the answers of a claim lead to. Raises `ClaimError` if an answer is wrong."""
    left, ready = iter(given), list[list[Taken]]([[]])

    def answers(case: Case, form: Form) -> Taken:
        answer = next(left, None)
        if answer is None:
            raise ClaimError("expected an answer for every comparison, got too few")
        if answer.outcome == "both":
            ready.append([*case.taken, (False, True)])
            return True, True
        opposite = form.opposite() if answer.outcome == "yes" else form
        if not contradicts(case, opposite, answer):
            raise ClaimError("expected factors that contradict what is known, got others")
        return answer.outcome == "yes", False

    for _ in range(MOST_CASES):
        if not ready:
            break
        yield Case(ready.pop(), answers)
    else:
        raise ClaimError(f"expected at most {MOST_CASES} cases")
    if next(left, None) is not None:
        raise ClaimError("expected no more answers than comparisons")
