"""What a block holds, exactly: a sum of named parts, each counted.

A part is a product of one sub-operator, or data from before the program; it has a place in a
tensor. Two blocks hold the same if their parts are the same as often: an equality of formal sums
that holds whatever the shapes and numbers are, and needs no solver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from primepar.schedule.meaning import Box, Key
from primepar.schedule.signature import Reduction
from primepar.verify.deadline import in_time

OWN = ("own", ())
BEFORE = ("before", ())
Source = tuple[str, Key]
"""(phase, which part of its output), or `OWN` or `BEFORE` for data that the program found."""


class Part(NamedTuple):
    """One summand of a block."""

    source: Source
    tensor: str
    box: Box


class Choice(NamedTuple):
    """The largest or smallest of some sums."""

    reduction: Reduction
    of: frozenset[Sum]


Sum = frozenset[tuple[Any, int]]
"""(part or choice, times)."""


class Content:
    """What one block holds; sums are flattened when they are asked for, and once."""

    __slots__ = ("_flat", "_of", "_reduction")

    def __init__(self, reduction: Reduction, of: tuple[Content, ...]) -> None:
        self._reduction, self._of = reduction, of
        self._flat: Sum | None = None

    @classmethod
    def flat(cls, parts: Sum) -> Content:
        """Content that is known already."""
        content = cls("sum", ())
        content._flat = parts
        return content

    @classmethod
    def one(cls, part: Part) -> Content:
        """A single part."""
        return cls.flat(frozenset(((part, 1),)))

    @property
    def parts(self) -> Sum:
        """The formal sum."""
        if self._flat is None:
            self._flat = self._sum() if self._reduction == "sum" else self._choice()
        return self._flat

    def holds(self, due: Sum) -> bool:
        """Whether this is what is due; the answer is fast the second time."""
        if self.parts is not due and self.parts == due:
            self._flat = due
        return self._flat is due

    def _sum(self) -> Sum:
        """Each content once, with how often it is in the sum: they may share one another."""
        uses, inner = self._uses()
        total: dict[Any, int] = {}
        often = dict.fromkeys(uses, 0) | {id(self): 1}
        ready: list[Content] = [self]
        while ready:
            above = ready.pop()
            for content in above._of:
                at = id(content)
                often[at] += often[id(above)]
                uses[at] -= 1
                if uses[at]:
                    continue
                if at in inner:
                    ready.append(content)
                    continue
                for part, times in content.parts:
                    total[part] = total.get(part, 0) + times * often[at]
        return frozenset(total.items())

    def _uses(self) -> tuple[dict[int, int], set[int]]:
        """How many sums below this one use a content, and those that are open sums themselves."""
        uses: dict[int, int] = {}
        inner: set[int] = set()
        ready: list[Content] = [self]
        while ready:
            for content in in_time(ready.pop()._of):
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
        ready, seen = list(self._of), set[int]()
        while ready:
            content = ready.pop()
            if id(content) in seen:
                continue
            seen.add(id(content))
            if content._flat is None and content._reduction == self._reduction:
                ready += content._of
            else:
                sums |= _chosen(content.parts, self._reduction)
        return next(iter(sums)) if len(sums) == 1 else _choice_of(self._reduction, sums)


ZERO = Content.flat(frozenset())


def _chosen(parts: Sum, reduction: Reduction) -> frozenset[Sum]:
    """The sums that a choice is among; a sum that is no such choice is the only one."""
    if len(parts) == 1:
        ((part, times),) = parts
        if times == 1 and isinstance(part, Choice) and part.reduction == reduction:
            return part.of
    return frozenset((parts,))


def _choice_of(reduction: Reduction, sums: Iterable[Sum]) -> Sum:
    return frozenset(((Choice(reduction, frozenset(sums)), 1),))


def reduced(reduction: Reduction, contents: Iterable[Content]) -> Content:
    """The sum of some contents, or the largest or smallest."""
    return Content(reduction, tuple(contents))


def made_of(parts: Iterable[Part], reduction: Reduction) -> Sum:
    """Every part once, reduced."""
    sums = [frozenset(((part, 1),)) for part in parts]
    if reduction == "sum":
        return frozenset(item for one in sums for item in one)
    return sums[0] if len(sums) == 1 else _choice_of(reduction, sums)


def parts_of(content: Sum) -> Counter[Part]:
    """How often each part is in a sum, those that a choice is among counted too."""
    found: Counter[Part] = Counter()
    for part, times in in_time(content):
        if isinstance(part, Choice):
            for one in part.of:
                found.update(parts_of(one))
        else:
            found[part] += times
    return found


def fits(content: Sum, box: Box) -> bool:
    """Whether everything in a sum is as large as a box."""
    size = [end - first for first, end in box]
    return all([end - first for first, end in part.box] == size for part in parts_of(content))


def cut(content: Sum, whole: Box, box: Box) -> Sum:
    """What a part of a block holds, of what the whole holds: every part is cut alike."""

    def moved(part: Part) -> Part:
        corner = tuple(
            (first - start + own, first - start + end)
            for (first, _), (start, _), (own, end) in zip(part.box, whole, box, strict=False)
        )
        return Part(part.source, part.tensor, corner)

    return _each(content, moved)


def joined(contents: Iterable[tuple[Sum, Box]], box: Box) -> Sum | None:
    """What blocks make that lie side by side and fill a box; None if they are of other kinds."""
    found = {_each(content, partial(_stretched, own=own, box=box)) for content, own in contents}
    return found.pop() if len(found) == 1 else None


def _stretched(part: Part, own: Box, box: Box) -> Part:
    around = tuple(
        (first - at + start, first - at + end)
        for (first, _), (at, _), (start, end) in zip(part.box, own, box, strict=False)
    )
    return Part(part.source, part.tensor, around)


def _each(content: Sum, change: Callable[[Part], Part]) -> Sum:
    return frozenset(
        (
            Choice(part.reduction, frozenset(_each(one, change) for one in part.of))
            if isinstance(part, Choice)
            else change(part),
            times,
        )
        for part, times in content
    )
