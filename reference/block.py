"""Blocks that know what they hold, so that a wrong addition raises where it happens.

A block is an array with the set of its terms. A term is a datum, which was there before the
program, or the product of one sub-operator. Each term of the linear operator has a home: the one
block that it may be summed into, once. A datum whose name means nothing has none: it is known by
its name and the rank where it began, and may be summed into anything, any number of times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from primepar.errors import WrongDataError
from primepar.schedule.operators import (
    DIMS,
    PRODUCTS,
    Dim,
    Phase,
    block_name,
    parse_block,
    tensor_dims,
)
from primepar.schedule.signature import Reduction

Array = NDArray[Any]
_UFUNCS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def home_of(name: str) -> str | None:
    """The block that a name speaks of, `O[0,1]` also for its scratch; None without meaning."""
    parsed = parse_block(name)
    return block_name(parsed.tensor, parsed.index) if parsed else None


@dataclass(frozen=True)
class Datum:
    """What a block held before the program; one without meaning is told apart by its `origin`."""

    name: str
    origin: int | None = None

    @classmethod
    def at(cls, name: str, rank: int) -> Datum:
        """Datum that lies under `name` on `rank` before the program."""
        home = home_of(name)
        return cls(name, rank) if home is None else cls(home)

    @property
    def home(self) -> str | None:
        """The block it is, if its name means one."""
        return self.name if self.origin is None else None

    def __str__(self) -> str:
        return self.name if self.origin is None else f"{self.name} of device {self.origin}"


@dataclass(frozen=True)
class SubOperator:
    """One block product of a phase, `forward M=0 N=1 K=0`."""

    phase: Phase
    slices: tuple[tuple[Dim, int], ...]

    @classmethod
    def of(cls, phase: Phase, slices: Mapping[Dim, int]) -> SubOperator:
        """Build one with its dims in the order of `DIMS`."""
        return cls(phase, tuple((dim, slices[dim]) for dim in DIMS if dim in slices))

    def block(self, tensor: str) -> str:
        """Name of the block of `tensor` that this sub-operator reads or sums into."""
        slices = dict(self.slices)
        return block_name(tensor, tuple(slices[d] for d in tensor_dims(tensor) if d in slices))

    @property
    def home(self) -> str:
        """The block that its product is summed into."""
        return self.block(PRODUCTS[self.phase].writes)

    @property
    def operands(self) -> tuple[str, ...]:
        """The blocks that it multiplies."""
        return tuple(self.block(tensor) for tensor in PRODUCTS[self.phase].reads)

    def multiply(self, arrays: Iterable[Array]) -> Array:
        """Contract the operands over every dim that the output has not: one rule, all phases."""
        reads, writes = PRODUCTS[self.phase]
        with_batch = "B" in dict(self.slices)
        terms = [
            "".join(dim for dim in tensor_dims(tensor) if dim != "B" or with_batch)
            for tensor in (*reads, writes)
        ]
        subscripts = f"{','.join(terms[:-1])}->{terms[-1]}"
        return np.asarray(np.einsum(subscripts, *arrays, optimize=True))

    def __str__(self) -> str:
        return " ".join([self.phase, *(f"{dim}={index}" for dim, index in self.slices)])


Term = Datum | SubOperator


@dataclass(frozen=True)
class Block:
    """An array that is never changed in place, and the terms whose sum it is."""

    array: Array
    terms: frozenset[Term]

    def __post_init__(self) -> None:
        self.array.flags.writeable = False

    @classmethod
    def datum(cls, name: str, rank: int, array: Array) -> Block:
        """Copy of an array that lies under `name` on `rank` before the program."""
        return cls(np.array(array), frozenset({Datum.at(name, rank)}))

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.array.size)

    @cached_property
    def homes(self) -> frozenset[str]:
        """The blocks that the terms belong to; one of them in a right sum."""
        return frozenset(term.home for term in self.terms if term.home is not None)

    def is_datum(self, name: str) -> bool:
        """Whether this is the datum of that name and nothing else."""
        return self.terms == {Datum(name)}

    def __str__(self) -> str:
        """How messages name the content: at most four terms."""
        shown = sorted(map(str, self.terms))
        more = f" + {len(shown) - 4} more" if len(shown) > 4 else ""
        return " + ".join(shown[:4]) + more if shown else "zeros"


def combine(blocks: Sequence[Block], reduction: Reduction = "sum") -> Block:
    """Reduce blocks into one.

    Raises `WrongDataError` if they have other shapes, belong to different blocks, would count a
    term that has a home twice, or have one and are reduced by `max` or `min`.
    """
    shapes = {block.array.shape for block in blocks if block.terms}
    if len(shapes) > 1:
        raise WrongDataError(f"expected blocks of one shape to reduce, got {_listed(shapes)}")
    homes = sorted(set().union(*(block.homes for block in blocks)))
    if len(homes) > 1:
        raise WrongDataError(
            f"expected terms of one block in a sum, got terms of {' and '.join(homes)}"
        )
    counts = Counter(term for block in blocks for term in block.terms)
    twice = sorted(str(term) for term, count in counts.items() if count > 1 and term.home)
    if reduction == "sum" and twice:
        raise WrongDataError(f"expected every term once in a sum, got {twice[0]} a second time")
    if reduction != "sum" and homes:
        raise WrongDataError(
            f"expected a sum of the terms of {homes[0]}, got their {reduction}: "
            "write reduction sum, or a name without meaning"
        )
    array = reduce(_UFUNCS[reduction], (block.array for block in blocks))
    return Block(np.array(array), frozenset(counts))


def _listed(shapes: Iterable[tuple[int, ...]]) -> str:
    return " and ".join(str(shape) for shape in sorted(shapes))
