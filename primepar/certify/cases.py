"""Whole numbers that stand for every mesh at once, case by case; nobody is asked but a certificate.

A map, or a claim about it, is called with `Linear` forms. Wherever it compares two of them, the
certificate says either that only one outcome can be, with factors that add what is known up to a
contradiction (Farkas' lemma), or that both can be: then both are followed. So a claim that ends
well in every case holds for all values, whatever the length of the sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NoReturn

from msgspec import Struct

from primepar.errors import ClaimError

MOST_QUOTIENTS = 16
"""Multiples of a divisor that are tried for the quotient."""
MOST_CASES = 20_000
"""Cases of one claim that are followed."""


class Answer(Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Whether a form is 0 or more: both, or only one, as the opposite contradicts what is known.

    `factors` has (place, factor): each times what is known at that place, -1 being the opposite,
    is added up.
    """

    outcome: Literal["both", "yes", "no"]
    factors: tuple[tuple[int, int], ...] = ()


class Linear:
    """A sum of multiples of variables, within one case: its comparisons give plain bools."""

    def __init__(self, case: Case, constant: int, factors: dict[str, int]) -> None:
        self.case, self.constant = case, constant
        self.factors = {name: factor for name, factor in factors.items() if factor}

    def _of(self, value: Any) -> Linear:
        if isinstance(value, Linear):
            return value
        if isinstance(value, int):
            return Linear(self.case, int(value), {})
        raise ClaimError(f"expected whole numbers in a map, got {type(value).__name__}")

    def __add__(self, other: Any) -> Linear:
        right, total = self._of(other), dict(self.factors)
        for name, factor in right.factors.items():
            total[name] = total.get(name, 0) + factor
        return Linear(self.case, self.constant + right.constant, total)

    def __mul__(self, other: Any) -> Linear:
        one, factor = self._of(other), self
        if not one.factors:
            one, factor = self, one
        if factor.factors:
            raise ClaimError("expected no product of two indices or sides in a map")
        times = {name: each * factor.constant for name, each in one.factors.items()}
        return Linear(self.case, one.constant * factor.constant, times)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Linear:
        return self * -1

    def __sub__(self, other: Any) -> Linear:
        return self + -self._of(other)

    def __rsub__(self, other: Any) -> Linear:
        return self._of(other) - self

    def __divmod__(self, other: Any) -> tuple[int, Linear]:
        """Quotient and rest: case by case the quotient is a plain number."""
        divisor, rest, quotient = self._of(other), self, 0
        if not divisor >= 1:
            raise ClaimError("expected % and // by 1 or more in a map")
        step = 1 if rest >= 0 else -1
        for _ in range(MOST_QUOTIENTS):
            if rest < divisor if step > 0 else rest >= 0:
                return quotient, rest
            quotient, rest = quotient + step, rest - divisor * step
        raise ClaimError(f"expected an index below {MOST_QUOTIENTS} sides left of % or //")

    def __mod__(self, other: Any) -> Linear:
        return self.__divmod__(other)[1]

    def __floordiv__(self, other: Any) -> int:
        return self.__divmod__(other)[0]

    def __rmod__(self, other: Any) -> Linear:
        return self._of(other) % self

    def __rfloordiv__(self, other: Any) -> int:
        return self._of(other) // self

    def __ge__(self, other: Any) -> bool:
        return self.case.decide(self - other)

    def __le__(self, other: Any) -> bool:
        return self.case.decide(-(self - other))

    def __gt__(self, other: Any) -> bool:
        return not self <= other

    def __lt__(self, other: Any) -> bool:
        return not self >= other

    def __eq__(self, other: object) -> bool:
        return self <= other and self >= other

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("an index of every mesh is no plain number")

    __hash__ = __bool__ = __index__ = __int__ = __float__ = __iter__ = _refuse


Taken = tuple[bool, bool]
"""Whether a form was taken to be 0 or more, and whether it could be otherwise."""


class Case:
    """One way through a claim: what is known in it, and what was decided."""

    def __init__(self, taken: Sequence[Taken], answers: Answers) -> None:
        self.known: list[Linear] = []
        """Forms that are 0 or more; those that follow from others are left out."""
        self.taken, self.answers = list(taken), answers
        self._ready = list(taken)
        self._names: set[str] = set()

    def fresh(self, name: str, first: int, limit: Linear | None = None) -> Linear:
        """A variable from `first` on, below a limit."""
        if name in self._names:
            raise ClaimError(f"expected axes of other names, got {name!r} twice")
        self._names.add(name)
        one = Linear(self, 0, {name: 1})
        self.known.append(one - first)
        if limit is not None:
            self.known.append(limit - 1 - one)
        return one

    def decide(self, form: Linear) -> bool:
        """Whether a form is 0 or more."""
        if not form.factors:
            return form.constant >= 0
        if self._ready:
            outcome, is_open = self._ready.pop(0)
        else:
            outcome, is_open = self.answers(self, form)
            self.taken.append((outcome, is_open))
        if is_open:
            self.known.append(form if outcome else -form - 1)
        return outcome


Answers = Callable[[Case, Linear], Taken]


def contradicts(known: list[Linear], opposite: Linear, answer: Answer) -> bool:
    """Whether forms that are 0 or more, times factors of 0 or more, add up to less than 0."""
    total = Linear(opposite.case, 0, {})
    for place, factor in answer.factors:
        if factor < 0 or not -1 <= place < len(known):
            return False
        total += (known[place] if place >= 0 else opposite) * factor
    return not total.factors and total.constant < 0


def cases(given: Sequence[Answer]) -> Iterator[Case]:
    """All cases that the answers of a claim lead to. Raises `ClaimError` if an answer is wrong."""
    left, ready = iter(given), list[list[Taken]]([[]])

    def answers(case: Case, form: Linear) -> Taken:
        answer = next(left, None)
        if answer is None:
            raise ClaimError("expected an answer for every comparison, got too few")
        if answer.outcome == "both":
            ready.append([*case.taken, (False, True)])
            return True, True
        opposite = -form - 1 if answer.outcome == "yes" else form
        if not contradicts(case.known, opposite, answer):
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
