"""Blocks that know what they hold.

A block is an array with the set of its terms. A term is a datum, which was there before the
program, or the product of one sub-operator. Each has a home: the place in a tensor that it may be
summed into, once; where a block is cut, its terms are cut with it. A datum whose name means nothing
has no home: it is known by its name and the rank where it began, and may be summed into anything,
any number of times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from primepar.schedule.meaning import Key, Place

Array = NDArray[Any]


class Datum(NamedTuple):
    """What a block held before the program; one without a home is told apart by its origin."""

    home: Place | None
    name: str = ""
    origin: int = 0


class ComputedProduct(NamedTuple):
    """What one sub-operator makes of its output block, or of the part of it that is its home."""

    home: Place
    phase: str
    key: Key


Term = Datum | ComputedProduct
Terms = frozenset[Term]


@dataclass(frozen=True)
class Block:
    """An array that is never changed in place, and the terms that are summed up in it."""

    array: Array
    terms: Terms

    def __post_init__(self) -> None:
        self.array.flags.writeable = False

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.array.size)

    @cached_property
    def homes(self) -> frozenset[Place]:
        """The places that the terms belong to; one of them in a right sum."""
        return frozenset(term.home for term in self.terms if term.home is not None)

    @property
    def kinds(self) -> frozenset[tuple[Any, ...]]:
        """What the terms are, wherever their home is."""
        return frozenset(term[1:] for term in self.terms)

    def moved(self, home: Place, array: Array) -> Block:
        """Terms of the same kinds at another home, with another array."""
        terms = (term._replace(home=home) if term.home else term for term in self.terms)
        return Block(np.array(array), frozenset(terms))
