"""What a block holds: in each of some boxes a reduction of tokens.

A token stands for a product, or for data from before the program. Each value has a corner: where
the block would begin in the tensor of its tokens.

    W[0:4] is cut in two, and its second part holds     ((0, 2): W from element 2)
    which under the name V[0:2] is wrong, as there      ((0, 2): V from element 0) is due
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from operator import add, sub
from typing import Any, NamedTuple

from primepar.schedule.meaning import Box

Token = tuple[str, Any]
"""A phase and the slices that tell its sub-operators apart, or ("own" or "before", tensor)."""
ELSEWHERE = "elsewhere"


class Value(NamedTuple):
    """How often each token is in it, and by which reductions they were put together.

    Where tokens of several corners were, `how` says `ELSEWHERE`, and the corner is one of them.
    """

    tokens: frozenset[tuple[Token, int]]
    corner: tuple[int, ...]
    how: frozenset[str] = frozenset()


Content = tuple[tuple[Box, Value], ...]
"""Boxes that lie apart, counted from the block's first element, and what is in each."""
ZERO: Content = ()
NO_SIZE: Content = ((((-1, 0),), Value(frozenset(), ())),)
"""Of blocks of several sizes; it fits no block."""


def meet(one: Box, other: Box) -> Box | None:
    """What two boxes have in common."""
    if len(one) != len(other):
        return None
    box = tuple([(max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)])
    return box if all(first < end for first, end in box) else None


def corner(box: Box) -> tuple[int, ...]:
    """The first element of a box."""
    return tuple([first for first, _ in box])


def within(box: Box, start: Sequence[int]) -> Box:
    """A box, counted from another first element."""
    return tuple([(a - at, b - at) for (a, b), at in zip(box, start, strict=True)])


def size(boxes: Iterable[Box]) -> int:
    """Elements in boxes that lie apart."""
    return sum(prod([b - a for a, b in box]) for box in boxes)


def fill(boxes: Sequence[Box], whole: Box) -> bool:
    """Whether boxes that lie apart fill another one, which begins at 0."""
    return all(meet(box, whole) == box for box in boxes) and size(boxes) == size([whole])


def fits(content: Content, box: Box) -> bool:
    """Whether a content fills a block that lies in a box of its tensor; zeros fit any."""
    return not content or fill([at for at, _ in content], within(box, corner(box)))


def reduced(reduction: str, contents: Iterable[Content]) -> Content:
    """The reduction of what several blocks hold."""
    given = [content for content in contents if content or reduction != "sum"]
    if not given:
        return ZERO
    made = [(box, [value]) for box, value in given[0]]
    for content in given[1:]:
        pairs = product(made, content)
        both = [(meet(box, at), [*values, value]) for (box, values), (at, value) in pairs]
        refined = [(box, values) for box, values in both if box is not None]
        if len({size(at for at, _ in each) for each in (made, refined, content)}) > 1:
            return NO_SIZE
        made = refined
    return tuple((box, _joined(reduction, values)) for box, values in made)


def _joined(reduction: str, values: list[Value]) -> Value:
    """A sum counts its tokens; the largest or smallest of equal values is one of them."""
    if len(values if reduction == "sum" else set(values)) == 1:
        return values[0]
    total = Counter[Token]()
    for value in values:
        if reduction == "sum":
            total.update(dict(value.tokens))
        else:
            total |= Counter(dict(value.tokens))
    how = {reduction}.union(*(value.how for value in values))
    how |= {ELSEWHERE} if len({value.corner for value in values}) > 1 else set()
    return Value(frozenset(total.items()), values[0].corner, frozenset(how))


def cut(content: Content, box: Box) -> Content:
    """The part of a block that lies in a box."""
    inside = [(meet(at, box), value) for at, value in content]
    first = corner(box)
    return tuple(
        (within(at, first), value._replace(corner=tuple(map(add, value.corner, first))))
        for at, value in inside
        if at is not None
    )


def join(parts: Iterable[tuple[Content, Box]]) -> Content:
    """Blocks put together, each in its box."""
    return tuple(
        (
            within(at, [-first for first in corner(box)]),
            value._replace(corner=tuple(map(sub, value.corner, corner(box)))),
        )
        for content, box in parts
        for at, value in content
    )
