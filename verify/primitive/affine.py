"""Affine forms of the sides: bounds of symbols, and numbers of slices and steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Affine:
    """`constant + coefficients[0] * first side + ...`, for sides of 1 or more."""

    constant: int
    coefficients: tuple[int, ...]

    def __add__(self, other: Affine) -> Affine:
        pairs = zip(self.coefficients, other.coefficients, strict=True)
        return Affine(self.constant + other.constant, tuple(a + b for a, b in pairs))

    def __mul__(self, factor: int) -> Affine:
        return Affine(self.constant * factor, tuple(a * factor for a in self.coefficients))

    def __sub__(self, other: Affine) -> Affine:
        return self + other * -1

    def plus(self, number: int) -> Affine:
        """The form plus a number."""
        return Affine(self.constant + number, self.coefficients)

    @property
    def is_number(self) -> bool:
        """Whether it is constant."""
        return not any(self.coefficients)

    def is_never_negative(self) -> bool:
        """Whether it is 0 or more for all sides; exact, as the sides are 1 or more."""
        ones = (1,) * len(self.coefficients)
        return min(self.coefficients, default=0) >= 0 and self.at(ones) >= 0

    def at(self, sides: tuple[int, ...]) -> int:
        """Its value for concrete sides."""
        pairs = zip(self.coefficients, sides, strict=True)
        return self.constant + sum(a * side for a, side in pairs)

    def times_in(self, divisor: Affine) -> int | None:
        """The largest number of times that `divisor` can be subtracted and leave 0 or more.

        It holds for all sides; the divisor is 1 or more. None if no number does.
        """
        ones = (1,) * len(self.coefficients)
        numerators, denominators = ((*form.coefficients, form.at(ones)) for form in (self, divisor))
        pairs = list(zip(numerators, denominators, strict=True))
        if any(factor < 0 for factor, by in pairs if not by):
            return None
        return min(factor // by for factor, by in pairs if by)

    def below(self, other: Affine) -> Affine:
        """An affine form that is at most both; it is exact where one is at most the other."""
        if (other - self).is_never_negative():
            return self
        if (self - other).is_never_negative():
            return other
        lowest = map(min, self.coefficients, other.coefficients)
        return Affine(min(self.constant, other.constant), tuple(lowest))

    def above(self, other: Affine) -> Affine:
        """An affine form that is at least both."""
        return (self * -1).below(other * -1) * -1
