"""All maps of one phase, which of them cover, and how many differ by more than names.

Every coefficient of r, c and t in M, N and K is tried from {-1, 0, 1, 2}: 4^9 maps. One covers if
each sub-operator (m, n, k) is computed once, on every mesh. That is so where the determinant is 1
or -1: then it has an inverse modulo every s. Maps whose devices have other names, or whose slices
are counted backwards, differ by nothing else: they have the same normal and direction (`affine`) up
to signs.

    >>> len(MAPS), int(covers().sum())
    (262144, 39036)
"""

from __future__ import annotations

from functools import cache
from itertools import permutations, product

import numpy as np
from numpy.typing import NDArray

from primepar.search.affine import Map, matrix_of

Array = NDArray[np.int64]
COEFFICIENTS = (-1, 0, 1, 2)
MAPS: Array = np.array(list(product(COEFFICIENTS, repeat=9)), dtype=np.int64).reshape(-1, 3, 3)
"""Rows M, N and K; columns r, c and t."""
Shape = tuple[tuple[int, ...], ...]
"""The normal of the plane on which devices work, and the direction in which each goes on."""


def shapes(maps: Array) -> tuple[Array, Array, Array]:
    """The normal, the direction and the determinant of each map."""
    normal = np.cross(maps[:, :, 0], maps[:, :, 1])
    direction = maps[:, :, 2]
    return normal, direction, (normal * direction).sum(1)


def covers() -> NDArray[np.bool_]:
    """Which of `MAPS` compute every sub-operator once, on every mesh."""
    return np.asarray(np.abs(shapes(MAPS)[2]) == 1)


def shape_of(rows: Map) -> Shape:
    """The normal and the direction of a map that covers, so that their product is 1."""
    normal, direction, determinant = (part[0] for part in shapes(matrix_of(rows)[None, :, :3]))
    return tuple((normal * determinant).tolist()), tuple(direction.tolist())


@cache
def distinct() -> dict[Shape, Map]:
    """Shape up to the signs of M, N and K -> the map with the smallest coefficients that has it."""
    maps = MAPS[covers()]
    normal, direction, determinant = shapes(maps)
    keys = np.concatenate([normal * determinant[:, None], direction], axis=1)
    simple = np.lexsort((*maps.reshape(-1, 9).T, np.abs(maps).sum((1, 2)), (maps < 0).sum((1, 2))))
    _, first = np.unique(keys[simple], axis=0, return_index=True)
    known: dict[Shape, Map] = {}
    for place in np.sort(first):
        rows = maps[simple[place]]
        shape = unsigned(shape_of(_map(rows)))
        known.setdefault(shape, _map(rows))
    return known


def _map(rows: Array) -> Map:
    return tuple((*map(int, row), 0, 0) for row in rows)


def unsigned(shape: Shape) -> Shape:
    """One of the shapes that differ by the signs of M, N and K: the largest."""
    signs = product((1, -1), repeat=3)
    flipped = (
        tuple(tuple(f * x for f, x in zip(flip, part, strict=True)) for part in shape)
        for flip in signs
    )
    return max(flipped)


def exchanged(shape: Shape) -> Shape:
    """One of the shapes that differ by the names of M, N and K: transposition, and I for O."""
    orders = permutations(range(3))
    return max(
        unsigned((tuple(shape[0][p] for p in order), tuple(shape[1][p] for p in order)))
        for order in orders
    )
