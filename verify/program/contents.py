"""What a block holds, exactly: a sum of named parts, each counted.

A part is a product of one sub-operator, or data from before the program; it has a place in a
tensor. Two blocks hold the same if their parts are the same as often: an equality of formal sums
that holds whatever the shapes and numbers are, and needs no solver. Parts of one place stand
together, so that all blocks of a tensor can share what is due in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from primepar.schedule.meaning import Box, Key, Place
from primepar.schedule.signature import Reduction
from primepar.verify.deadline import in_time

OWN = ("own", ())
LOOSE = ("loose", ())
BEFORE = ("before", ())
Source = tuple[str, Key]
"""(phase, which part of its output), or `OWN` or `BEFORE` for data that the program found, or
`LOOSE` if no tensor has it."""


class Summand(NamedTuple):
    """One summand of a block."""

    source: Source
    place: Place


class Extremum(NamedTuple):
    """The largest or smallest of some sums."""

    reduction: Reduction
    of: frozenset[Sum]


Terms = frozenset[tuple[Source | None, int]]
"""(source, times) of what is summed up in one place; of a choice the source is None."""
Sum = frozenset[tuple[Any, Terms]]
"""(place or choice, terms)."""
ONCE: Terms = frozenset(((None, 1),))


class Content:
    """What one block holds; sums are flattened when they are asked for, and once."""

    __slots__ = ("_flat", "_of", "_reduction")

    def __init__(self, reduction: Reduction, of: tuple[Content | Summand, ...]) -> None:
        self._reduction, self._of = reduction, of
        self._flat: Sum | None = None

    @classmethod
    def flat(cls, parts: Sum) -> Content:
        """Content that is known already."""
        content = cls("sum", ())
        content._flat = parts
        return content

    @classmethod
    def one(cls, part: Summand) -> Content:
        """A single part."""
        return cls("sum", (part,))

    @property
    def parts(self) -> Sum:
        """The formal sum."""
        if self._flat is None:
            self._flat = self._sum() if self._reduction == "sum" else self._choice()
        return self._flat

    def holds(self, due: Sum) -> bool:
        """Whether this is what is due; the answer is fast the second time."""
        if self._flat is not due and self.parts == due:
            self._flat, self._of = due, ()
        return self._flat is due

    def _sum(self) -> Sum:
        """Each content once, with how often it is in the sum: they may share one another."""
        uses, inner = self._uses()
        total: dict[Any, dict[Source | None, int]] = {}
        often = dict.fromkeys(uses, 0) | {id(self): 1}
        ready: list[Content] = [self]
        for above in ready:
            for content in above._of:
                if isinstance(content, Summand):
                    _add(total, content.place, ((content.source, 1),), often[id(above)])
                    continue
                at = id(content)
                often[at] += often[id(above)]
                uses[at] -= 1
                if not uses[at] and at in inner:
                    ready.append(content)
                elif not uses[at]:
                    for where, terms in content.parts:
                        _add(total, where, terms, often[at])
        return frozenset((where, frozenset(terms.items())) for where, terms in total.items())

    def _uses(self) -> tuple[dict[int, int], set[int]]:
        """How many sums below this one use a content, and those that are open sums themselves."""
        uses: dict[int, int] = {}
        inner: set[int] = set()
        ready: list[Content] = [self]
        for above in in_time(ready):
            for content in above._of:
                if isinstance(content, Summand):
                    continue
                at = id(content)
                uses[at] = uses.get(at, 0) + 1
                is_open = content._flat is None and content._reduction == "sum"
                if is_open and at not in inner:
                    inner.add(at)
                    ready.append(content)
        return uses, inner

    def _choice(self) -> Sum:
        """Of equal reductions one inside another are one."""
        sums: set[Sum] = set()
        ready = [each for each in self._of if isinstance(each, Content)]
        seen = set[int]()
        while ready:
            content = ready.pop()
            if id(content) in seen:
                continue
            seen.add(id(content))
            if content._flat is None and content._reduction == self._reduction:
                ready += [each for each in content._of if isinstance(each, Content)]
            else:
                sums |= _chosen(content.parts, self._reduction)
        return next(iter(sums)) if len(sums) == 1 else _choice_of(self._reduction, sums)


ZERO = Content.flat(frozenset())


def _add(
    total: dict[Any, dict[Source | None, int]],
    where: Any,
    terms: Iterable[tuple[Source | None, int]],
    often: int,
) -> None:
    own = total.setdefault(where, {})
    for source, times in terms:
        own[source] = own.get(source, 0) + times * often


def _chosen(parts: Sum, reduction: Reduction) -> frozenset[Sum]:
    """The sums that a choice is among; a sum that is no such choice is the only one."""
    if len(parts) == 1:
        ((choice, terms),) = parts
        if terms == ONCE and choice.reduction == reduction:
            of: frozenset[Sum] = choice.of
            return of
    return frozenset((parts,))


def _choice_of(reduction: Reduction, sums: Iterable[Sum]) -> Sum:
    return frozenset(((Extremum(reduction, frozenset(sums)), ONCE),))


def reduced(reduction: Reduction, contents: Iterable[Content | Summand]) -> Content:
    """The sum of some contents, or the largest or smallest."""
    if reduction == "sum":
        return Content(reduction, tuple(contents))
    return Content(reduction, tuple([Content.one(each) if type(each) is Summand else each
                                     for each in contents]))  # fmt: skip


def made_of(place: Place, terms: Terms, reduction: Reduction) -> Sum:
    """Every term in one place, reduced."""
    if reduction == "sum" or len(terms) == 1:
        return frozenset(((place, terms),))
    return _choice_of(reduction, [frozenset(((place, frozenset((term,))),)) for term in terms])


def parts_of(content: Sum) -> Counter[Summand]:
    """How often each part is in a sum, those that a choice is among counted too."""
    found: Counter[Summand] = Counter()
    for where, terms in in_time(content):
        if isinstance(where, Extremum):
            for one in where.of:
                found.update(parts_of(one))
            continue
        for source, times in terms:
            assert source is not None
            found[Summand(source, where)] += times
    return found


def _places(content: Sum) -> Iterator[Place]:
    for where, _ in in_time(content):
        if isinstance(where, Extremum):
            for one in where.of:
                yield from _places(one)
        else:
            yield where


def fits(content: Sum, box: Box) -> bool:
    """Whether everything in a sum is as large as a box."""
    size = [end - first for first, end in box]
    return all([end - first for first, end in at.box] == size for at in _places(content))


def cut(content: Sum, whole: Box, box: Box) -> Sum:
    """What a part of a block holds, of what the whole holds: every part is cut alike."""

    def moved(at: Place) -> Place:
        corner = tuple(
            (first - start + own, first - start + end)
            for (first, _), (start, _), (own, end) in zip(at.box, whole, box, strict=False)
        )
        return Place(at.tensor, corner)

    return _each(content, moved)


def joined(contents: Iterable[tuple[Sum, Box]], box: Box) -> Sum | None:
    """What blocks make that lie side by side and fill a box; None if they are of other kinds."""
    found = {_each(content, partial(_stretched, own=own, box=box)) for content, own in contents}
    return found.pop() if len(found) == 1 else None


def _stretched(at: Place, own: Box, box: Box) -> Place:
    around = tuple(
        (first - corner + start, first - corner + end)
        for (first, _), (corner, _), (start, end) in zip(at.box, own, box, strict=False)
    )
    return Place(at.tensor, around)


def _each(content: Sum, change: Callable[[Place], Place]) -> Sum:
    """A sum with its parts elsewhere. What `fits` is moved by one distance, so no two meet."""
    return frozenset(
        (
            Extremum(where.reduction, frozenset(_each(one, change) for one in where.of))
            if isinstance(where, Extremum)
            else change(where),
            terms,
        )
        for where, terms in content
    )
