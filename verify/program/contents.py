"""The exact content of a block: a formal sum of named summands, each with its count.

A summand is a product of one sub-operator, or data from before the program; it has a place in a
tensor. Its count is a rational number: a sum over 4 ranks with scale 1/4 has every summand 1/4
times. Two blocks hold the same data if they have the same summands with the same counts. This
equality holds for all shapes and numbers, and needs no solver. The summands of one place are stored
together, so that all blocks of a tensor can share the terms that they require.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from primepar.schedule.meaning import Box, Key, Place
from primepar.schedule.signature import Reduction, Scale
from primepar.verify.deadline import in_time

OWN = ("own", ())
LOOSE = ("loose", ())
BEFORE = ("before", ())
Source = tuple[str, Key]
"""(phase, which part of its output); for data from before the program `OWN`, or `BEFORE` if a
phase adds to it; `LOOSE` if it is of no tensor."""


class Summand(NamedTuple):
    """One summand of a block."""

    source: Source
    place: Place


class Extremum(NamedTuple):
    """The largest or smallest of some sums."""

    reduction: Reduction
    of: frozenset[Sum]


Terms = frozenset[tuple[Source | None, Scale]]
"""(source, count) of the summands in one place; of an extremum the source is None."""
Sum = frozenset[tuple[Any, Terms]]
"""(place or extremum, terms)."""
ONCE: Terms = frozenset(((None, 1),))


class Content:
    """The content of one block, `scale` times a reduction of others; of max and min it is 1.

    Sums are flattened when they are first read, and cached. Reductions only record their operands,
    so that a long chain of sums costs one flattening.
    """

    __slots__ = ("_flat", "_of", "_reduction", "_scale")

    def __init__(
        self, reduction: Reduction, of: tuple[Content | Summand, ...], scale: Scale = 1
    ) -> None:
        self._reduction, self._of, self._scale = reduction, of, scale
        self._flat: Sum | None = None

    @classmethod
    def flat(cls, parts: Sum) -> Content:
        """Content with a given formal sum."""
        content = cls("sum", ())
        content._flat = parts
        return content

    @classmethod
    def one(cls, part: Summand) -> Content:
        """Content of a single summand."""
        return cls("sum", (part,))

    @property
    def parts(self) -> Sum:
        """The formal sum."""
        if self._flat is None:
            self._flat = self._sum() if self._reduction == "sum" else self._extremum()
        return self._flat

    def holds(self, due: Sum) -> bool:
        """Whether this equals the required sum; the second comparison is by identity."""
        if self._flat is not due and self.parts == due:
            self._flat, self._of = due, ()
        return self._flat is due

    def _sum(self) -> Sum:
        """Add up each operand once, times its number of uses: operands may share others."""
        uses, inner = self._uses()
        total: dict[Any, dict[Source | None, Scale]] = {}
        times_used: dict[int, Scale] = {**dict.fromkeys(uses, 0), id(self): 1}
        ready: list[Content] = [self]
        for above in ready:
            times = times_used[id(above)] * above._scale
            for content in above._of:
                if isinstance(content, Summand):
                    _add(total, content.place, ((content.source, 1),), times)
                    continue
                key = id(content)
                times_used[key] += times
                uses[key] -= 1
                if not uses[key] and key in inner:
                    ready.append(content)
                elif not uses[key]:
                    for where, terms in content.parts:
                        _add(total, where, terms, times_used[key])
        return frozenset((where, frozenset(terms.items())) for where, terms in total.items())

    def _uses(self) -> tuple[dict[int, int], set[int]]:
        """Number of sums below this one that use a content; contents that are not yet flat sums."""
        uses: dict[int, int] = {}
        inner: set[int] = set()
        ready: list[Content] = [self]
        for above in in_time(ready):
            for content in above._of:
                if isinstance(content, Summand):
                    continue
                key = id(content)
                uses[key] = uses.get(key, 0) + 1
                is_open = content._flat is None and content._reduction == "sum"
                if is_open and key not in inner:
                    inner.add(key)
                    ready.append(content)
        return uses, inner

    def _extremum(self) -> Sum:
        """Nested extrema of the same kind are one."""
        sums: set[Sum] = set()
        ready = [part for part in self._of if isinstance(part, Content)]
        seen = set[int]()
        while ready:
            content = ready.pop()
            if id(content) in seen:
                continue
            seen.add(id(content))
            if content._flat is None and content._reduction == self._reduction:
                ready += [part for part in content._of if isinstance(part, Content)]
            else:
                sums |= _operands_of(content.parts, self._reduction)
        return next(iter(sums)) if len(sums) == 1 else _extremum_of(self._reduction, sums)


ZERO = Content.flat(frozenset())


def _add(
    total: dict[Any, dict[Source | None, Scale]],
    where: Any,
    terms: Iterable[tuple[Source | None, Scale]],
    times_used: Scale,
) -> None:
    counts = total.setdefault(where, {})
    for source, times in terms:
        counts[source] = counts.get(source, 0) + times * times_used


def _operands_of(parts: Sum, reduction: Reduction) -> frozenset[Sum]:
    """The operands of an extremum of that reduction; any other sum is itself the only operand."""
    if len(parts) == 1:
        ((extremum, terms),) = parts
        if terms == ONCE and extremum.reduction == reduction:
            of: frozenset[Sum] = extremum.of
            return of
    return frozenset((parts,))


def _extremum_of(reduction: Reduction, sums: Iterable[Sum]) -> Sum:
    return frozenset(((Extremum(reduction, frozenset(sums)), ONCE),))


def reduced(
    reduction: Reduction, contents: Iterable[Content | Summand], scale: Scale = 1
) -> Content:
    """The sum, times `scale`, or maximum or minimum of some contents or summands."""
    if reduction == "sum":
        return Content(reduction, tuple(contents), scale)
    return Content(reduction, tuple([Content.one(part) if type(part) is Summand else part
                                     for part in contents]))  # fmt: skip


def reduction_of(place: Place, terms: Terms, reduction: Reduction) -> Sum:
    """The formal reduction of all terms in one place."""
    if reduction == "sum" or len(terms) == 1:
        return frozenset(((place, terms),))
    return _extremum_of(reduction, [frozenset(((place, frozenset((term,))),)) for term in terms])


def parts_of(content: Sum) -> dict[Summand, Scale]:
    """How often each part is in a sum, those that a choice is among counted too."""
    counts: dict[Summand, Scale] = {}
    for where, terms in in_time(content):
        if isinstance(where, Extremum):
            for operand in where.of:
                for part, times in parts_of(operand).items():
                    counts[part] = counts.get(part, 0) + times
            continue
        for source, times in terms:
            assert source is not None
            part = Summand(source, where)
            counts[part] = counts.get(part, 0) + times
    return counts


def _places(content: Sum) -> Iterator[Place]:
    for where, _ in in_time(content):
        if isinstance(where, Extremum):
            for operand in where.of:
                yield from _places(operand)
        else:
            yield where


def fits(content: Sum, box: Box) -> bool:
    """Whether every place in a sum has the size of a box."""
    size = [end - first for first, end in box]
    return all([end - first for first, end in place.box] == size for place in _places(content))


def cut(content: Sum, whole: Box, box: Box) -> Sum:
    """The content of a part of a block: the same part of every summand."""

    def moved(place: Place) -> Place:
        corner = tuple(
            (first - start + begin, first - start + end)
            for (first, _), (start, _), (begin, end) in zip(place.box, whole, box, strict=False)
        )
        return Place(place.tensor, corner)

    return _with_places(content, moved)


def joined(contents: Iterable[tuple[Sum, Box]], box: Box) -> Sum | None:
    """The content of adjacent blocks that fill a box; None if their summands differ."""
    wholes = {
        _with_places(content, partial(_extended, part=part, box=box)) for content, part in contents
    }
    return wholes.pop() if len(wholes) == 1 else None


def _extended(place: Place, part: Box, box: Box) -> Place:
    around = tuple(
        (first - corner + start, first - corner + end)
        for (first, _), (corner, _), (start, end) in zip(place.box, part, box, strict=False)
    )
    return Place(place.tensor, around)


def _with_places(content: Sum, change: Callable[[Place], Place]) -> Sum:
    """A sum with changed places. What `fits` moves by one distance, so places stay distinct."""
    return frozenset(
        (
            Extremum(
                where.reduction, frozenset(_with_places(operand, change) for operand in where.of)
            )
            if isinstance(where, Extremum)
            else change(where),
            terms,
        )
        for where, terms in content
    )
