"""Triples whose tensors return home: which maps, which homes, and what moves.

Where tensors have homes, every map that covers is right, in every phase. So only the words decide.
A device receives a block at each step that needs one which it neither had at the step before nor
has at home. With the block `Q d + tau t` of a device and its home `H d`, that is all of the s^3
(device, step) but the solutions of `(Q - H) d = -tau t`, and 0 where nothing moves and `Q = H`.
Partial sums go the same ways backwards, so that an output sends as many words as an operand.

A map that covers goes on by an odd number along some dim, since `n . tau = 1`: of the coefficients
here by 1 or -1. The two tensors with that dim meet s different blocks on a device, on every side.
So each device has the block of one step at most at home, all solutions are s^2 at most, and both
send at least (s - 1) of their blocks per device. That is reached by rotation (`Q = H`: Cannon) and
by broadcasts (`Q - H` of rank one: SUMMA), and the third tensor may send none. From the homes of
Cannon's plane each phase may choose which two. So the frontier of all these triples has one plane
and what stays in which phase. Backward and gradient share dO where they have one map.

With any other coefficients that holds on sides that are powers of a prime, which does not divide
all entries of `tau`. It does not hold on side 6: `M=r + 3 t, N=r + 2 t, K=c` has its W at home
twice, and sends s - 2 of its blocks.

Copies that forward receives may be kept: s blocks of I, or of W, where a device goes on along it.
A later phase that goes on along the same dim receives none of them. So `OOO` with both kept sends
2 (s - 1) blocks of I and of W for 3, and what stays in which phase is chosen anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product

import numpy as np

from primepar.schedule.operators import PHASES
from primepar.search.affine import TENSORS, Home, Map, Triple
from primepar.search.boxes import phase_before
from primepar.search.covering import COEFFICIENTS, Array, distinct

SIDE = 5
"""Of the mesh on which homes are compared."""
CYCLIC: dict[str, Map] = {
    "O": ((1, 0, 0, 0, 0), (1, 1, 1, 0, 0), (0, 1, 0, 0, 0)),
    "I": ((1, 0, 0, 0, 0), (1, 1, 0, 0, 0), (0, 1, 1, 0, 0)),
    "W": ((1, 0, 1, 0, 0), (1, 1, 0, 0, 0), (0, 1, 0, 0, 0)),
}
"""The tensor that stays -> a map on the plane on which any may stay: N = M + K at first."""


@cache
def _homes() -> tuple[Home, ...]:
    """All homes that keep one copy, those with the smallest coefficients first."""
    pairs = product(product(COEFFICIENTS, repeat=2), repeat=2)
    homes = [((*a, 0), (*b, 0)) for a, b in pairs if abs(a[0] * b[1] - a[1] * b[0]) == 1]
    return tuple(
        sorted(
            homes,
            key=lambda home: (
                sum(x < 0 for row in home for x in row),
                sum(abs(x) for row in home for x in row),
                tuple(tuple(-x for x in row) for row in home),
            ),
        )
    )


@cache
def received(block: Home, home: Home, side: int, kept: Home | None = None) -> int:
    """Blocks of one tensor that all devices together receive in a phase: the formula above.

    A device has those at home, and where they are `kept` all of forward. On an even side, a tensor
    that goes on by 2 may send less: a device meets a block twice.
    """
    here = _numbers(block, side)
    at_home = _numbers(tuple((*row[:2], 0, row[2]) for row in home), side)[:1]
    has = at_home if kept is None else np.concatenate([at_home, _numbers(kept, side)])
    lacks = (here[:, None] != has).all(1)
    lacks[1:] &= here[1:] != here[:-1]
    return int(lacks.sum())


@cache
def _numbers(block: Home, side: int) -> Array:
    """The number of the block of each device (a column) at each step (a row)."""
    t, r, c = np.indices((side,) * 3).reshape(3, side, side**2)
    one, other = ((x[0] * r + x[1] * c + x[2] * t + x[3]) % side for x in block)
    return np.asarray(one * side + other)


def blocks_of(rows: Map, tensor: str) -> Home:
    """The rows of a map that index the block of a tensor."""
    first, second = TENSORS[tensor]
    return rows[first], rows[second]


@cache
def nearest_home(block: Home) -> Home:
    """The home from which devices receive least in all, and then least before the first step.

    Of several the simplest.
    """
    first = tuple((*row[:2], 0, row[3], 0) for row in block)
    return min(
        _homes(), key=lambda home: (received(block, home, SIDE), received(first, home, SIDE))
    )


def one_map() -> Iterator[Triple]:
    """Yield the triples of one map in all phases, each map that is distinct, with its homes."""
    for rows in distinct().values():
        homes = tuple(nearest_home(blocks_of(rows, tensor)) for tensor in TENSORS)
        yield Triple((rows,) * 3, homes)


def several_maps() -> Iterator[Triple]:
    """Yield the triples on Cannon's plane, for what stays in each phase; not all the same."""
    rows = {tensor: blocks_of(CYCLIC["O"], tensor) for tensor in TENSORS}
    homes = tuple(((*a[:2], 0), (*b[:2], 0)) for a, b in rows.values())
    for stay in product(CYCLIC, repeat=3):
        if len(set(stay)) > 1:
            yield Triple(tuple(CYCLIC[tensor] for tensor in stay), homes)


def words(triple: Triple, side: int) -> tuple[int, int, int]:
    """Blocks of I, W and O that all devices together receive in a training step.

    Backward and gradient share dO where both need the same of its blocks at every step.
    """
    total = dict.fromkeys(TENSORS, 0)
    for (tensor, home), (phase, rows) in product(
        zip(TENSORS, triple.homes, strict=True), zip(PHASES, triple.phases, strict=True)
    ):
        block, before = blocks_of(rows, tensor), phase_before(tensor, phase, triple.keeps)
        earlier = None if before is None else blocks_of(triple.phases[before], tensor)
        if tensor != "O" or block != earlier:
            kept = earlier if tensor in triple.keeps else None
            total[tensor] += received(block, home, side, kept)
    return total["I"], total["W"], total["O"]
