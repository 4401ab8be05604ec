"""Values: sums with exact coefficients of what no reduction looks into, element range by range.

For example, on four ranks the all-reduced mean of a gradient is `1/4 g0 + 1/4 g1 + 1/4 g2 + 1/4 g3`
on each of them, where `g0` is the gradient as rank 0 computed it. Two ranks that compute a gradient
by the same operations from the same data have the same `g`, and their sum is `2 g`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import NamedTuple

Atom = tuple[str, int]
"""Digest of an opaque value, and the element of it that is the first here."""
Form = tuple[tuple[Atom, Fraction], ...]
"""Atoms with their coefficients, in order, none of them zero."""


class Segment(NamedTuple):
    """Elements that are one sum of consecutive elements of atoms."""

    length: int
    form: Form


Value = tuple[Segment, ...]
_LARGEST_DENOMINATOR = 1 << 20
_ROUNDED = Fraction(1, 10**7)
"""Largest difference, as a share of the value: a float32 is rounded by 6e-8 of itself."""


def meant(value: float) -> Fraction:
    """The nearest fraction with a small denominator, if rounding can explain the difference."""
    exact = Fraction(value)
    near = exact.limit_denominator(_LARGEST_DENOMINATOR)
    return near if abs(near - exact) <= _ROUNDED * abs(exact) else exact


def opaque(digest: str, length: int) -> Value:
    """A value that is not looked into."""
    return (Segment(length, (((digest, 0), Fraction(1)),)),)


def scaled(value: Value, factor: Fraction) -> Value:
    """A value times a factor."""
    return tuple(
        Segment(length, tuple((atom, number * factor) for atom, number in form))
        for length, form in value
    )


def total(values: Iterable[Value]) -> Value:
    """The sum of values of one length."""
    sums = []
    for segments in aligned(list(values)):
        form: dict[Atom, Fraction] = {}
        for segment in segments:
            for atom, number in segment.form:
                form[atom] = form.get(atom, Fraction(0)) + number
        rest = sorted((atom, number) for atom, number in form.items() if number)
        sums.append((Segment(segments[0].length, tuple(rest)),))
    return joined(sums)


def aligned(values: Sequence[Value]) -> Iterator[list[Segment]]:
    """The segments of values of one length, piece by piece: none changes its sum within one."""
    cuts = {0}
    for value in values:
        cuts.update(accumulate(segment.length for segment in value))
    for start, end in pairwise(sorted(cuts)):
        yield [part(value, start, end)[0] for value in values]


def part(value: Value, start: int, end: int) -> Value:
    """The elements of a value from `start` until `end`."""
    pieces, place = [], 0
    for length, form in value:
        low, high = max(start, place), min(end, place + length)
        if low < high:
            pieces.append(Segment(high - low, _shifted(form, low - place)))
        place += length
    return tuple(pieces)


def joined(values: Iterable[Value]) -> Value:
    """Values one after the other; parts of one value that meet again become one."""
    result: list[Segment] = []
    for segment in (segment for value in values for segment in value):
        before = result[-1] if result else None
        if before is not None and segment.form == _shifted(before.form, before.length):
            result[-1] = Segment(before.length + segment.length, before.form)
        else:
            result.append(segment)
    return tuple(result)


def digest(value: Value) -> str:
    """A name that equal values have in common."""
    return digest_of(repr(value))


def digest_of(*texts: str) -> str:
    """A name of several texts."""
    return sha256("\0".join(texts).encode()).hexdigest()[:32]


def size(value: Value) -> int:
    """Elements of a value."""
    return sum(segment.length for segment in value)


def mapped(name: str, value: Value, length: int) -> Value:
    """A linear operation of a value: of each of its atoms, if it is one segment."""
    if len(value) != 1:
        return opaque(digest_of(name, digest(value)), length)
    form = sorted(((mapped_atom(name, atom), 0), number) for atom, number in value[0].form)
    return (Segment(length, tuple(form)),)


def mapped_atom(name: str, atom: Atom) -> str:
    """The digest of what a linear operation makes of an atom."""
    return digest_of(name, *map(str, atom))


def _shifted(form: Form, by: int) -> Form:
    return tuple(((name, first + by), number) for (name, first), number in form) if by else form
