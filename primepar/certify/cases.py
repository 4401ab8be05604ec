"""Evaluates a claim for all values of its names at once, case by case, as a certificate directs.

Names are whole numbers within their ranges. An expression is evaluated to a `Form`, a polynomial in
the names. Wherever two forms are compared, the certificate has an answer. Either both outcomes are
possible, and both are followed. Or only one is, and the answer has factors with which the facts of
the case and the opposite add up to a contradiction (Farkas' lemma). A claim that holds at the end
of every case holds for all values. For example `(r + 1) % s < s`, where `r < s`, has two cases: `r
+ 1 < s`, where the remainder is `r + 1`, and `r + 1 == s`, where it is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from primepar.errors import ClaimError
from primepar.schedule.deadline import seconds_left
from primepar.schedule.expression import Condition, Expression, Number
from primepar.schedule.polynomial_form import Form

MAX_QUOTIENTS = 16
"""Number of quotients that are tried for a division by a form."""
MAX_REMAINDERS = 16
"""Largest plain number by which a remainder is a plain number in each case."""
MAX_CASES = 20_000
"""Largest number of cases of one claim."""


class Answer(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Whether a form is 0 or more: "yes", "no", or "both" where either is possible.

    For "yes" and "no" the opposite contradicts the facts of the case. `factors` has pairs (index of
    a fact, factor), with -1 as the index of the opposite. The facts, times their factors, add up to
    less than 0.
    """

    outcome: Literal["both", "yes", "no"]
    factors: tuple[tuple[int, int], ...] = ()


Decision = tuple[bool, bool]
"""Whether a form is 0 or more in a case, and whether another case decides the opposite."""


class Case:
    """One case of a claim: its facts, and the decisions that lead to it.

    `facts` are forms that are 0 or more. Equations are not listed there: each is solved for one of
    its names, which is then replaced wherever it occurs.
    """

    def __init__(self, decisions: Sequence[Decision], answers: Answers) -> None:
        self.facts: list[Form] = []
        self.solved: dict[str, Form] = {}
        self.decisions, self.answers = list(decisions), answers
        # Every case is followed from the start: the first decisions are those that led to the
        # branch, the last of them with the opposite outcome.
        self._prescribed = list(decisions)
        self._decided: dict[Form, bool] = {}
        self._values: dict[int, tuple[Any, Form | bool]] = {}
        self._quotients = 0

    def variable(self, name: str, first: int, limit: Form | None = None) -> Form:
        """A new name for any whole number from `first` to below `limit`."""
        variable = Form.named(name)
        self.facts.append(variable.plus(Form.of(-first)))
        if limit is not None:
            # name < limit, of whole numbers: limit - name - 1 >= 0.
            self.facts.append(limit.plus(variable, -1).plus(Form.of(-1)))
        return variable

    def reduced(self, form: Form) -> Form:
        """The form with every solved name replaced by its value."""
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
        # What was decided before in this case is not asked again. `r + 1 < s` and `r + 1 >= s` are
        # one question, with opposite answers.
        for comparison, outcome in ((form, True), (opposite, False)):
            if comparison in self._decided:
                return self._decided[comparison] == outcome
        if self._prescribed:
            outcome, is_open = self._prescribed.pop(0)
        else:
            outcome, is_open = self.answers(self, form)
            self.decisions.append((outcome, is_open))
        self._decided[form] = outcome
        # The case now stands for those values for which it is so. An answer that follows from the
        # facts adds none: what is implied would only make contradictions longer.
        if is_open:
            self.facts.append(form if outcome else opposite)
        return outcome

    def equal(self, left: Form, right: Form) -> bool:
        """Whether two forms are equal; if so, one name is solved for."""
        form = self.reduced(left.plus(right, -1))
        # f == 0 is f >= 0 and -f >= 0, two decisions.
        if not (self.decide(form) and self.decide(form.scaled(-1))):
            return False
        self._solve(form)
        return True

    def _solve(self, form: Form) -> None:
        """Solve `form == 0`, if it is linear, for the last name that has the factor 1 or -1."""
        # `r + 1 == s` becomes s = r + 1 everywhere, so that `s * s` and `(r + 1) * s` are seen to
        # be equal. 2 q == t gives no whole factor to solve q for; t is solved for.
        linear = all(len(term) < 2 for term in form.terms)
        units = sorted(term[0] for term, factor in form.terms.items() if term and abs(factor) == 1)
        if linear and units:
            name = units[-1]
            factor = form.terms[name,]
            rest = form.plus(Form({(name,): -factor}))
            value = rest.scaled(-factor)
            # Values of other names must not mention a name that is solved for: each replacement
            # then ends.
            self.solved = {key: old.replaced(name, value) for key, old in self.solved.items()}
            self.solved[name] = value

    # Expressions

    def value(self, node: Number, names: Mapping[str, Form]) -> Form:
        """Evaluate an expression to a form. Raises `ClaimError` if it has none."""
        form: Form = self._read(node, names)
        return form

    def holds(self, node: Condition | bool, names: Mapping[str, Form]) -> bool:
        """Whether a condition holds."""
        truth: bool = self._read(node, names)
        return truth

    def _read(self, root: Any, names: Mapping[str, Form]) -> Any:
        """The form of an expression or the truth of a condition, each part evaluated once.

        `waiting` is the stack that a recursion would have: the part on top is read as soon as all
        that it needs is known. In `where(t == s - 1, 1, 0)` that is the condition, and then one
        branch: the other one is not evaluated in this case, so nothing is asked about it.
        """
        waiting = [root]
        while waiting:
            seconds_left()
            part = waiting[-1]
            missing = next((one for one in self._needed(part) if not self._is_known(one)), None)
            if missing is not None:
                waiting.append(missing)
                continue
            waiting.pop()
            if not self._is_known(part):
                self._values[id(part)] = part, self._computed(part, names)
        return self._known(root)

    @staticmethod
    def _is_plain(node: Any) -> bool:
        return not isinstance(node, Expression | Condition)

    def _is_known(self, node: Any) -> bool:
        return self._is_plain(node) or id(node) in self._values

    def _known(self, node: Any) -> Any:
        """What was read of a part; a plain number as a form."""
        if not self._is_plain(node):
            return self._values[id(node)][1]
        if not isinstance(node, int):
            raise ClaimError(f"expected whole numbers in a map, got {node!r}")
        return node if isinstance(node, bool) else Form.of(node)

    def _needed(self, node: Any) -> Iterator[Any]:
        """The parts that must be known before a node is; the first decides about the second."""
        if self._is_plain(node) or node.operator == "name":
            return
        if node.operator == "where":
            condition, then, otherwise = node.parts
            yield condition
            yield then if self._known(condition) else otherwise
        elif node.operator in ("&", "|"):
            yield node.parts[0]
            # Python's `and` and `or`: `(s > 1) & (t % (s - 1) == 0)` divides only where s > 1
            # holds.
            if self._known(node.parts[0]) == (node.operator == "&"):
                yield node.parts[1]
        else:
            yield from node.parts

    def _computed(self, node: Expression | Condition, names: Mapping[str, Form]) -> Form | bool:
        """The value of a node whose needed parts are known."""
        if node.operator == "name":
            return names[node.parts[0]]
        if node.operator in ("where", "&", "|"):
            *_, last = self._needed(node)  # the chosen branch, or the part that decides
            value: Form | bool = self._known(last)
            return value
        operands = [self._known(part) for part in node.parts]
        if node.operator == "~":
            return not operands[0]
        known = self._compared if isinstance(node, Condition) else self._calculated
        return known(node.operator, *operands)

    def _compared(self, operator: str, left: Form, right: Form) -> bool:
        """Compare two forms; `a <= b` is `b - a >= 0`."""
        if operator in ("==", "!="):
            return self.equal(left, right) == (operator == "==")
        if operator in ("<=", ">"):
            left, right = right, left
        return self.decide(left.plus(right, -1)) == (operator in (">=", "<="))

    def _calculated(self, operator: str, left: Form, right: Form | None = None) -> Form:
        """Calculate with one form or two."""
        if right is None:
            return left.scaled(-1)
        match operator:
            case "+" | "-":
                return left.plus(right, 1 if operator == "+" else -1)
            case "*":
                return left.times(right)
            case "//" | "%":
                return self.divided(left, right)[operator == "%"]
        raise ClaimError(f"expected +, -, *, // and % in a map, got {operator}")

    def divided(self, form: Form, divisor: Form) -> tuple[Form, Form]:
        """Quotient and remainder. In each case, one is a plain number if the divisor is small."""
        form, divisor = self.reduced(form), self.reduced(divisor)
        if divisor.constant is not None:
            return self._divided_by_number(form, divisor.constant)
        if not self.decide(divisor.plus(Form.of(-1))):
            raise ClaimError("expected % and // by 1 or more in a map")
        # By subtraction, one case for each quotient: (r + c) // s is 0 where r + c < s, else 1, as
        # r, c < s. A negative form is raised until it is 0 or more, as in Python -1 % s == s-1.
        rest, quotient, step = form, 0, 1 if self.decide(form) else -1
        for _ in range(MAX_QUOTIENTS):
            below = not self.decide(rest.plus(divisor, -1)) if step > 0 else self.decide(rest)
            if below:
                return Form.of(quotient), rest
            quotient, rest = quotient + step, rest.plus(divisor, -step)
        raise ClaimError(f"expected an index below {MAX_QUOTIENTS} sides left of % or //")

    def _divided_by_number(self, form: Form, divisor: int) -> tuple[Form, Form]:
        """Introduce a name for the quotient; the remainder is what it leaves, below `divisor`.

        Of `t % 2` there are two cases, t == 2 q and t == 2 q + 1. Of `t % 1000` there is one, in
        which the remainder is t - 1000 q: the number of cases does not grow with the divisor.
        """
        if divisor < 1:
            raise ClaimError("expected % and // by 1 or more in a map")
        # 4 t + 5 divided by 4 is t + 1, and 1 remains: where all other factors are multiples, no
        # name is needed.
        rest = form.terms.get((), 0) % divisor
        if any(factor % divisor for term, factor in form.terms.items() if term):
            self._quotients += 1
            quotient = Form.named(f"quotient {self._quotients}")
            left = form.plus(quotient, -divisor)
            # 0 <= form - divisor * quotient < divisor defines the quotient.
            self.facts += [left, Form.of(divisor - 1).plus(left, -1)]
            self.quotient(quotient, form, divisor)
            if divisor > MAX_REMAINDERS:
                return quotient, left
            rest = next((n for n in range(divisor) if self.equal(left, Form.of(n))), -1)
            if rest < 0:
                raise ClaimError("expected a remainder below the divisor, got none")
            return quotient, Form.of(rest)
        whole = {term: factor // divisor for term, factor in form.terms.items() if term}
        return Form({**whole, (): (form.terms.get((), 0) - rest) // divisor}), Form.of(rest)

    def quotient(self, name: Form, form: Form, divisor: int) -> None:
        """Called for every new name of a quotient; the prover overrides it."""


Answers = Callable[[Case, Form], Decision]


def contradicts(case: Case, opposite: Form, answer: Answer) -> bool:
    """Whether facts and `opposite`, times factors of 1 or more, add up to less than 0."""
    total, previous = Form({}), -2
    for index, factor in answer.factors:
        # Ascending indices: no fact twice, and -1, the opposite, first. Only positive factors keep
        # `>= 0`.
        if factor < 1 or not previous < index < len(case.facts):
            return False
        previous = index
        fact = case.facts[index] if index >= 0 else opposite
        # r >= 0, s - r - 1 >= 0 and -s >= 0 add up to -1 >= 0, so they cannot hold together. Facts
        # of whole numbers are tightened before: from 2 q - 3 >= 0 follows q - 2 >= 0.
        total = total.plus(case.reduced(fact).tightened(), factor)
    return total.constant is not None and total.constant < 0


def cases(given: Sequence[Answer]) -> Iterator[Case]:
    """Yield every case of a claim, given its answers. Raises `ClaimError` if an answer is wrong.

    The reader of a case makes comparisons, and each takes the next answer. After "both" the case
    goes on with "yes", and its decisions up to there, with "no", are kept as the start of a later
    case.
    """
    unused, starts = iter(given), list[list[Decision]]([[]])

    def next_answer(case: Case, form: Form) -> Decision:
        answer = next(unused, None)
        if answer is None:
            raise ClaimError("expected an answer for every comparison, got too few")
        if answer.outcome == "both":
            # The other side of the branch waits. No list of cases is taken on trust: both outcomes
            # of every open comparison are followed, or the certificate is refused.
            starts.append([*case.decisions, (False, True)])
            return True, True
        opposite = form.opposite() if answer.outcome == "yes" else form
        if not contradicts(case, opposite, answer):
            raise ClaimError("expected factors that contradict the facts, got others")
        return answer.outcome == "yes", False

    for _ in range(MAX_CASES):
        if not starts:
            break
        yield Case(starts.pop(), next_answer)
    else:
        raise ClaimError(f"expected at most {MAX_CASES} cases")
    # Answers that nothing asks for would be unchecked text in a proof.
    if next(unused, None) is not None:
        raise ClaimError("expected no more answers than comparisons")
