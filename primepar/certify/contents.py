"""What a block holds: in each of some boxes a reduction of terms.

Part of the checker of certificates. A term is a product's sub-operator, or the tensor that data is
of, with its corner: where the block would begin in that tensor.

    W[0:4] is cut into W[0:2] and W[2:4]:       ((0, 4): W at 0)
    the second part holds, from its own start,  ((0, 2): W at 2)
    received under the name V[0:2] it still     ((0, 2): W at 2), which is not V at 0
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from operator import add
from typing import Any, NamedTuple

from primepar.schedule.meaning import Box

Token = tuple[str, Any]
"""A phase and the slices that tell its sub-operators apart, or ("own" or "before", tensor)."""
Term = tuple[Token, tuple[int, ...]]
"""A token and its corner."""


class Value(NamedTuple):
    """How often each term is in it, and by which reductions they were put together."""

    terms: frozenset[tuple[Term, int]]
    how: frozenset[str] = frozenset()


Content = tuple[tuple[Box, Value], ...]
"""Boxes that lie apart, counted from the block's first element, and what is in each."""
ZERO: Content = ()
NO_SIZE: Content = ((((-1, 0),), Value(frozenset())),)
"""Of blocks of several sizes; it fits no block."""


def meet(one: Box, other: Box) -> Box | None:
    """What two boxes have in common."""
    if len(one) != len(other):
        return None
    box = tuple([(max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)])
    return box if all(first < end for first, end in box) else None


def further(box: Box, by: Iterable[int]) -> Box:
    """A box elsewhere."""
    return tuple([(a + step, b + step) for (a, b), step in zip(box, by, strict=True)])


def corner(box: Box) -> tuple[int, ...]:
    """The first element of a box."""
    return tuple([first for first, _ in box])


def size(boxes: Iterable[Box]) -> int:
    """Elements in boxes that lie apart."""
    return sum(prod([b - a for a, b in box]) for box in boxes)


def fill(boxes: Sequence[Box], whole: Box) -> bool:
    """Whether boxes that lie apart fill another one."""
    return all(meet(box, whole) == box for box in boxes) and size(boxes) == size([whole])


def fits(content: Content, box: Box) -> bool:
    """Whether a content fills a block that lies in a box of its tensor; zeros fit any."""
    own = further(box, [-first for first in corner(box)])
    return not content or fill([at for at, _ in content], own)


def reduced(reduction: str, contents: Iterable[Content]) -> Content:
    """The reduction of what several blocks hold."""
    given = [content for content in contents if content or reduction != "sum"]
    if not given:
        return ZERO
    made = [(box, [value]) for box, value in given[0]]
    for content in given[1:]:
        pairs = [(meet(box, at), [*values, value])
                 for (box, values), (at, value) in product(made, content)]  # fmt: skip
        both = [(box, values) for box, values in pairs if box is not None]
        sizes = {size(at for at, _ in each) for each in (made, both, content)}
        if len(sizes) > 1:
            return NO_SIZE
        made = both
    return tuple((box, _joined(reduction, values)) for box, values in made)


def _joined(reduction: str, values: list[Value]) -> Value:
    """A sum counts its terms; the largest or smallest of equal values is one of them."""
    if len(values if reduction == "sum" else set(values)) == 1:
        return values[0]
    total = Counter[Term]()
    for terms, _ in values:
        if reduction == "sum":
            total.update(dict(terms))
        else:
            total |= Counter(dict(terms))
    how = frozenset({reduction}).union(*(value.how for value in values))
    return Value(frozenset(total.items()), how)


def moved(content: Content, by: Sequence[int]) -> Content:
    """The same, counted from an element that lies further."""
    back = [-step for step in by]
    return tuple(
        (
            further(box, back),
            Value(
                frozenset(((token, tuple(map(add, at, by))), n) for (token, at), n in value.terms),
                value.how,
            ),
        )
        for box, value in content
    )


def cut(content: Content, box: Box) -> Content:
    """The part of a block that lies in a box."""
    inside = [(meet(at, box), value) for at, value in content]
    return moved(tuple((at, value) for at, value in inside if at is not None), corner(box))


def join(parts: Iterable[tuple[Content, Box]]) -> Content:
    """Blocks put together."""
    return tuple(
        region
        for content, box in parts
        for region in moved(content, [-first for first in corner(box)])
    )
