"""Affine triples: the maps of the three phases as whole numbers, and as a primitive.

A map is a row for each of M, N and K: the coefficients of the axes, of `t`, of 1, and of the last
step. So `N=(r + c + t) % s` is `(1, 1, 1, 0, 0)`, and `(c - 1 + where(t == s - 1, 1, 0)) % s` is
`(0, 1, 0, -1, 1)`. A home is a row for each of two dims, of the axes and of 1.

With `P` the columns of the axes and `tau` that of `t`, the devices work at step t on the points
`P d + tau t`. They are a plane, and its normal `n` has `n . tau = 1` or -1 where the map covers
every sub-operator once. Cannon's plane is `N = M + K + t`, SUMMA's is `N = t`.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from primepar.schedule.expression import evaluate
from primepar.schedule.operators import PHASES, tensor_dims
from primepar.schedule.primitive import ANY, Primitive, Slices, Value, where
from primepar.schedule.tracing import Digits, maps_of

Row = tuple[int, ...]
Map = tuple[Row, ...]
"""Rows of M, N and K."""
Home = tuple[Row, ...]
"""Rows of the two dims of a tensor."""
DIMS = ("M", "N", "K")
TENSORS: dict[str, tuple[int, int]] = {"I": (0, 1), "W": (1, 2), "O": (0, 2)}
"""Tensor -> the places of its dims in `DIMS`."""
STANDS_OUT = 7
"""A side on which the coefficients of a map can be read: it is prime, and they are from -3 to 3."""
COMPARED = (1, 2, 3, 4, 5, 6)
"""Sides on which a map has to be the one that was read."""


class Triple(NamedTuple):
    """The maps of a training step on two axes of side s, in s steps."""

    phases: tuple[Map, ...]
    """Of forward, backward and gradient."""
    homes: tuple[Home, ...] = ()
    """Of I, W and O; empty where tensors stay where a phase leaves them."""
    keeps: tuple[str, ...] = ()
    """Of I and W those whose copies, received in forward, are kept for the later phases."""


def matrix_of(rows: tuple[Row, ...]) -> NDArray[np.int64]:
    """The rows as an array: of three dims and two axes 3 x 5."""
    return np.array(rows, dtype=np.int64)


class Affine(Primitive):
    """The primitive of a triple."""

    axes = ("r", "c")

    def __init__(self, triple: Triple, label: str = "SearchClass") -> None:
        self.triple, self.label = triple, label
        self.keeps = triple.keeps
        self.home = self._home if triple.homes else None

    def forward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        """The first map."""
        return _slices(self.triple.phases[0], r, c, t, s)

    def backward(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        """The second map."""
        return _slices(self.triple.phases[1], r, c, t, s)

    def gradient(self, r: Value, c: Value, t: Value, s: Value) -> Slices:
        """The third map."""
        return _slices(self.triple.phases[2], r, c, t, s)

    def _home(self, tensor: str, r: Value, c: Value, s: Value) -> Slices:
        rows = self.triple.homes[list(TENSORS).index(tensor)]
        dims = tensor_dims(tensor)[-2:]
        return {dim: _index(row, (r, c, 1), s) for dim, row in zip(dims, rows, strict=True)}


def _slices(rows: Map, r: Value, c: Value, t: Value, s: Value) -> Slices:
    return {
        dim: _index(row[:4], (r, c, t, 1), s, where(t == s - 1, row[4], 0) if row[4] else None)
        for dim, row in zip(DIMS, rows, strict=True)
    }


def _index(row: Row, values: tuple[Value, ...], s: Value, last: Value | None = None) -> Value:
    """The slice index of a row, `(r - 1) % s`; what is added comes before what is taken away."""
    terms = [(factor, value) for factor, value in zip(row, values, strict=True) if factor]
    terms.sort(key=lambda term: term[0] < 0)
    if last is None and not terms:
        return 0
    if last is None and len(terms) == 1 and terms[0][0] == 1 and row[-1] == 0:
        return terms[0][1]  # r is below s already
    total: Value = None
    for factor, value in terms:
        size = value if abs(factor) == 1 else abs(factor) * value
        if total is None:
            total = size if factor > 0 else -size
        else:
            total = total + size if factor > 0 else total - size
    if last is not None:
        total = last if total is None else total + last
    return total % s


# Reading: the triple of a primitive that somebody else has written


class OtherShapeError(Exception):
    """A primitive is no affine triple; the text is what it has instead."""


def triple_of(primitive: Primitive) -> Triple:
    """The triple of a primitive on two equal axes, whose phases have s steps.

    The coefficients are read on one side, and the map that they give is compared with the primitive
    on others. Raises `OtherShapeError` where it is no affine map of one digit for each dim.
    """
    maps, sides = maps_of(primitive), primitive.side_names
    if len(primitive.axis_sides) != 2 or len(sides) != 1:
        raise OtherShapeError(f"{len(primitive.axis_sides)} axes of {len(sides)} sides")
    if any(evaluate(maps.steps, {sides[0]: s}) != s for s in (*COMPARED, STANDS_OUT)):
        raise OtherShapeError(f"{maps.steps} steps")
    if primitive.keeps and not maps.homes:
        raise OtherShapeError("copies that are kept without homes")
    phases = (_read(primitive, maps.phases[phase], DIMS, steps=True) for phase in PHASES)
    homes = (
        _read(primitive, maps.homes[tensor], tensor_dims(tensor)[-2:], steps=False)
        for tensor in TENSORS
        if maps.homes
    )
    return Triple(tuple(phases), tuple(homes), tuple(sorted(primitive.keeps)))


def _read(
    primitive: Primitive, slices: Digits, dims: tuple[str, ...], *, steps: bool
) -> tuple[Row, ...]:
    single = all(len(index) == 1 and index[0] is not ANY for index in slices.values())
    if set(slices) != set(dims) or not single:
        raise OtherShapeError("an index that is not one digit for each dim")
    return tuple(_row(primitive, slices[dim][0], steps) for dim in dims)


def _row(primitive: Primitive, digit: Value, steps: bool) -> Row:
    axes, side = tuple(primitive.axis_sides), primitive.side_names[0]

    def value(s: int, *point: int) -> int:
        return int(evaluate(digit, dict(zip((*axes, "t", side), (*point, s), strict=True)))) % s

    s = STANDS_OUT
    start, end = value(s, 0, 0, 0), value(s, 0, 0, s - 1)
    factors = [value(s, 1, 0, 0) - start, value(s, 0, 1, 0) - start, value(s, 0, 0, 1) - start]
    read = [*factors, start, end - start + factors[2]]
    row = [(number + s // 2) % s - s // 2 for number in read]
    for s in COMPARED:
        for r, c, t in product(range(s), range(s), range(s if steps else 1)):
            total = row[0] * r + row[1] * c + row[2] * t + row[3] + row[4] * (t == s - 1)
            # On one step the first is the last, and every index is 0.
            if s > 1 and (total - value(s, r, c, t)) % s:
                raise OtherShapeError(f"the index {digit}")
    return tuple(row) if steps else (row[0], row[1], row[3])
