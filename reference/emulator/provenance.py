"""Provenance: blocks that carry the terms that they hold, each with its coefficient.

A block is an array with its terms. A term is a datum, which existed before the program, or the
product of one sub-operator. Each term has a home: the place in a tensor that it may be summed into,
once. If a block is cut, its terms are cut with it. A datum whose name has no meaning has no home.
It is identified by its name and its first rank, and may be summed into anything, any number of
times. Example: after `y += x0 w0` and `y += x1 w1`, block `y` has two terms, the two products, each
once. After an addition of `y` to `z` with scale 1/2, `z` has both 1/2 times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from primepar.schedule.meaning import Key, Place
from primepar.schedule.signature import Scale

Array = NDArray[Any]


class Datum(NamedTuple):
    """The content of a block before the program; without a home its origin distinguishes it."""

    home: Place | None
    name: str = ""
    origin: int = 0


class ComputedProduct(NamedTuple):
    """The product of one sub-operator in its output block, or in the part that is its home."""

    home: Place
    phase: str
    key: Key


Term = Datum | ComputedProduct
Terms = Mapping[Term, Scale]
"""Term -> its coefficient."""


@dataclass(frozen=True)
class Block:
    """An array that is never changed in place, and the terms that are summed in it."""

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
        """The places that the terms belong to; a correct sum has one."""
        return frozenset(term.home for term in self.terms if term.home is not None)

    @property
    def kinds(self) -> frozenset[tuple[Any, ...]]:
        """The terms without their homes, with their coefficients."""
        return frozenset((*term[1:], scale) for term, scale in self.terms.items())

    def moved(self, home: Place, array: Array) -> Block:
        """Return a block with terms of the same kinds at another home, and another array."""
        terms = {
            term._replace(home=home) if term.home else term: scale
            for term, scale in self.terms.items()
        }
        return Block(np.array(array), terms)
