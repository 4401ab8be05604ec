"""Is a triple right on every mesh? Answered with whole numbers, before anything is proved.

Right is: each map covers, and where tensors have no homes each block that a device needs was on
some device at the step before, O ends where dO starts, and dW where W starts. With `Q` the
coefficients of the devices in a block, some device holds `Q d + x` for every d where x is a whole
combination of the columns of Q, and only there on every mesh. Homes keep every block if their
determinant is 1 or -1.

Example: SUMMA's I is `(r, t)`. Without a home nobody holds `(r, t + 1)` at step t: (0, 1) is no
combination of the columns (1, 0) and (0, 0).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from primepar.schedule.movement import NEXT_USE
from primepar.schedule.operators import PHASES, PRODUCTS, Phase
from primepar.search.affine import TENSORS, Map, Triple
from primepar.search.covering import Array


def fault(triple: Triple) -> str | None:
    """The first thing that is wrong on some mesh, `gradient I`; None for a triple that is right."""
    return next(_faults(triple), None)


def _faults(triple: Triple) -> Iterator[str]:
    maps = dict(zip(PHASES, triple.phases, strict=True))
    for phase, rows in maps.items():
        if not _covers(rows):
            yield f"coverage {phase}"
    if triple.homes:
        for tensor, home in zip(TENSORS, triple.homes, strict=True):
            matrix = np.array(home)[:, :2]
            if abs(round(np.linalg.det(matrix))) != 1:
                yield f"home {tensor}"
        return
    for phase, rows in maps.items():
        for tensor in PRODUCTS[phase].reads:
            block = _block(rows, tensor)
            moves = block[:, 2], block[:, 2] + block[:, 4]  # between steps, and before the last
            if not all(_reaches(block[:, :2], move) for move in moves):
                yield f"{phase} {tensor}"
    for (phase, tensor), then in NEXT_USE.items():
        held, needed = _block(maps[phase], tensor), _block(maps[then], tensor)
        apart = [needed[:, 3] - _end(held), *needed[:, :2].T]
        if not all(_reaches(held[:, :2], column) for column in apart):
            yield f"{phase} {tensor} to {then}"
    stays: tuple[tuple[Phase, str, Phase], ...] = (
        ("forward", "O", "backward"),
        ("gradient", "W", "forward"),
    )
    for phase, tensor, then in stays:
        held, needed = _block(maps[phase], tensor), _block(maps[then], tensor)
        if (held[:, :2] != needed[:, :2]).any() or (_end(held) != needed[:, 3]).any():
            yield f"{phase} {tensor} to {then}"


def _covers(rows: Map) -> bool:
    """Whether a map covers: with an offset at the last step only if that stays on the plane."""
    matrix = np.array(rows)
    normal = np.cross(matrix[:, 0], matrix[:, 1])
    return abs(int(normal @ matrix[:, 2])) == 1 and int(normal @ matrix[:, 4]) == 0


def _block(rows: Map, tensor: str) -> Array:
    return np.array(rows)[list(TENSORS[tensor.removeprefix("d")])]


def _end(block: Array) -> Array:
    """The constant at the last step, t = s - 1, modulo s."""
    return np.asarray(block[:, 3] - block[:, 2] + block[:, 4])


def _reaches(columns: Array, point: Array) -> bool:
    """Whether a point is a whole combination of two columns: Cramer's rule, or a common line."""
    a, b, c, d = (int(number) for number in columns.ravel())
    x, y = (int(number) for number in point)
    determinant = a * d - b * c
    if determinant:
        return not ((x * d - b * y) % determinant or (a * y - x * c) % determinant)
    # All columns are multiples of one vector: those that are reached are multiples of their sum
    # with the smallest size, by Euclid.
    (p, q), (u, v) = (a, c), (b, d)
    while u or v:
        factor = p // u if u else q // v
        (p, q), (u, v) = (u, v), (p - factor * u, q - factor * v)
    if not (p or q):
        return not (x or y)
    times = x // p if p else y // q
    return (x, y) == (times * p, times * q)
