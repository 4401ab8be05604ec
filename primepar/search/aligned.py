"""Triples whose tensors stay where a phase leaves them: which offsets align them, and what hops.

Without homes, each block that a device needs has to be on some device at the step before, so all
phases work on Cannon's plane (`M=r, N=r+c, K=c` up to names), where every block of every tensor is
on one device. Aligned are those whose O ends forward where backward starts with dO, and whose dW
ends gradient where forward starts with W. What a device needs at the start of a phase and does not
have is one more hop, the realigning one. Counted in hops of every device at once:

    a tensor that moves       s - 2, and one more at the last step unless its offset undoes it
    a tensor that stays       none, and one at the last step if an offset moves it
    between two phases        one, unless it is where the next phase starts

Example: PrimePar's W takes s - 1 hops in forward and in backward, one to where forward starts, and
dW one before its last product: `2 (s - 2) + 4`.

The search is restricted, and complete within these rules. Each phase goes on along one dim, in
either direction: along two or three, all three tensors would move. The three phases have the same
coefficients of r and c: else every block of a realigned tensor hops. An offset at the last step is
a hop of the device's whole work, so that coverage holds. Offsets are from {-1, 0, 1, 2}.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np

from primepar.search.affine import TENSORS, Map, Triple
from primepar.search.covering import COEFFICIENTS, Array

PLANE = np.array([[1, 0], [1, 1], [0, 1]])
NORMAL = np.array([1, -1, 1])
STAYS = ("W", "O", "I")
"""The dim along which a device goes on, M, N or K -> the tensor that stays."""


class Hops(NamedTuple):
    """Hops of I, W and O in a training step: `often` times s - 2, and `once`."""

    often: tuple[int, ...]
    once: tuple[int, ...]

    def on(self, side: int) -> tuple[int, ...]:
        """Hops on a mesh of this side."""
        return tuple(a * (side - 2) + b for a, b in zip(self.often, self.once, strict=True))


class _Phase(NamedTuple):
    """All maps of one phase: a row each, of offsets in M, N and K."""

    direction: Array
    start: Array
    """The constant offset."""
    last: Array
    """The offset at the last step."""

    @property
    def end(self) -> Array:
        """Where a device is at the last step, counted from its place on the plane: t = s - 1."""
        return self.start - self.direction + self.last

    @property
    def often(self) -> Array:
        """Tensors that move at every step."""
        return np.stack([self.direction[:, dims].any(1) for dims in TENSORS.values()], 1) * 1

    @property
    def once(self) -> Array:
        """Tensors that move before the last step."""
        moved = self.direction + self.last
        return np.stack([moved[:, dims].any(1) for dims in TENSORS.values()], 1) * 1

    @property
    def size(self) -> Array:
        """The sum of all offsets, without signs."""
        return np.asarray((np.abs(self.start) + np.abs(self.last)).sum(1))

    def rows(self, place: int) -> Map:
        """The rows of one of the maps."""
        offsets = (self.direction[place], self.start[place], self.last[place])
        return tuple(
            (*map(int, PLANE[dim]), *(int(offset[dim]) for offset in offsets)) for dim in range(3)
        )


@cache
def _choices() -> tuple[Array, Array, Array]:
    """Direction, last offset and free offset: all that a phase may choose."""
    directions = [sign * np.eye(3, dtype=np.int64)[dim] for dim in range(3) for sign in (1, -1)]
    inside = [last for last in product(COEFFICIENTS, repeat=3) if NORMAL @ np.array(last) == 0]
    inside.sort(key=lambda last: (sum(map(abs, last)), last))
    offsets = sorted(COEFFICIENTS, key=lambda offset: (abs(offset), offset))
    rows = [(*d, *last, free) for d, last, free in product(directions, inside, offsets)]
    table = np.array(rows, dtype=np.int64)
    return table[:, :3], table[:, 3:6], table[:, 6]


def _forward() -> _Phase:
    """It starts on the plane, in positive direction: counting backwards is a symmetry."""
    direction, last, free = _choices()
    kept = (free == 0) & (direction.sum(1) > 0)
    return _Phase(direction[kept], np.zeros_like(last[kept]), last[kept])


def _backward(end: Array) -> _Phase:
    """It starts where forward has left O; its N is free."""
    direction, last, free = _choices()
    start = np.stack([np.full_like(free, end[0]), free, np.full_like(free, end[2])], 1)
    return _Phase(direction, start, last)


def _gradient() -> _Phase:
    """It ends where forward starts with W, so at offset 0 of N and K; its M is free."""
    direction, last, free = _choices()
    start = direction - last
    start[:, 0] = free
    return _Phase(direction, start, last)


def _apart(one: Array, other: Array, tensor: str) -> Array:
    """Whether blocks at two offsets are different."""
    dims = list(TENSORS[tensor])
    return np.asarray((one[..., dims] != other[..., dims]).any(-1) * 1)


def triples() -> int:
    """How many triples are aligned: the product of what the phases may choose."""
    return len(_forward().start) * len(_choices()[0]) ** 2


def fewest_hops() -> Iterator[tuple[tuple[str, ...], Hops, Triple]]:
    """Yield, for what stays in forward, backward and gradient, the triple with the fewest hops.

    Of several the one with the smallest offsets.
    """
    best: dict[tuple[int, int, int], tuple[tuple[int, int], Hops, Triple]] = {}
    forward, gradient = _forward(), _gradient()
    along = [np.abs(phase).argmax(1) for phase in (forward.direction, gradient.direction)]
    for f in range(len(forward.start)):
        backward = _backward(forward.end[f])
        # What hops between phases: I from forward to gradient, W from forward to backward and
        # back, dO from backward to gradient.
        weight = _apart(forward.end[f], backward.start, "W")
        weight += _apart(backward.end, np.zeros_like(backward.end), "W")
        once_b = backward.once + weight[:, None] * np.array([0, 1, 0])
        again = _apart(forward.end[f], gradient.start, "I")
        once_g = gradient.once + again[:, None] * np.array([1, 0, 0])
        output = _apart(backward.end[:, None], gradient.start[None], "O")
        total = (forward.once[f].sum() + once_b.sum(1))[:, None] + once_g.sum(1)[None] + output
        offsets = forward.size[f] + backward.size[:, None] + gradient.size[None]
        back = np.abs(backward.direction).argmax(1)
        for b_dim, g_dim in product(range(3), repeat=2):
            rows, columns = np.flatnonzero(back == b_dim), np.flatnonzero(along[1] == g_dim)
            part = np.ix_(rows, columns)
            order = total[part] * 1000 + offsets[part]
            place = np.unravel_index(order.argmin(), order.shape)
            b, g = int(rows[place[0]]), int(columns[place[1]])
            key = int(along[0][f]), b_dim, g_dim
            score = int(total[b, g]), int(offsets[b, g])
            if key not in best or score < best[key][0]:
                often = forward.often[f] + backward.often[b] + gradient.often[g]
                once = forward.once[f] + once_b[b] + once_g[g] + output[b, g] * np.array([0, 0, 1])
                hops = Hops(tuple(map(int, often)), tuple(map(int, once)))
                triple = Triple((forward.rows(f), backward.rows(b), gradient.rows(g)))
                best[key] = score, hops, triple
    for along_dims in sorted(best):
        _, hops, triple = best[along_dims]
        yield tuple(STAYS[dim] for dim in along_dims), hops, triple
