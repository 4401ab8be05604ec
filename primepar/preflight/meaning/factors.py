"""Factors as the fractions that they are meant as: a third that was rounded is 1/3."""

from __future__ import annotations

from fractions import Fraction

LARGEST_DENOMINATOR = 1 << 20
ROUNDED = Fraction(1, 10**7)
"""Largest difference, as a share of the value: a float32 is rounded by 6e-8 of itself."""


def meant(value: float) -> Fraction:
    """The nearest fraction with a small denominator, if rounding can explain the difference."""
    exact = Fraction(value)
    near = exact.limit_denominator(LARGEST_DENOMINATOR)
    return near if abs(near - exact) <= ROUNDED * abs(exact) else exact
