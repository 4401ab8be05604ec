"""Evaluates claims on one concrete mesh: each expression once, on arrays of all points."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
from numpy.typing import NDArray

from primepar.certify.claims import Claim
from primepar.errors import SymbolicError
from primepar.schedule.expression import Number, evaluate, names

Array = NDArray[np.int64]
Point = dict[str, int]
"""A value for every name, sides included."""
MAX_POINTS = 4_000_000
"""Largest number of points of one claim on one mesh that is evaluated."""


def limits(claim: Claim, sides: Mapping[str, int]) -> tuple[Point, Point]:
    """Number of values of each given name and of each witness, without sides."""
    given = {name: int(evaluate(limit, sides)) for name, limit in claim.given if limit is not None}
    witnesses = {name: int(evaluate(limit, sides)) for name, limit in claim.witnesses}
    return given, witnesses


def grid(counts: Mapping[str, int]) -> dict[str, Array]:
    """All combinations of values of several names, each name as a flat array."""
    axes = np.indices(tuple(max(count, 0) for count in counts.values()))
    return {name: axis.ravel() for name, axis in zip(counts, axes, strict=True)}


def size(values: Mapping[str, Array]) -> int:
    """Number of points; 1 where no name is given."""
    return next((len(column) for column in values.values()), 1)


def column(node: Number, values: Mapping[str, Array | int], count: int) -> Array:
    """The values of an expression at every point."""
    return np.broadcast_to(np.asarray(evaluate(node, values)), count)


def choices(claim: Claim, point: Point) -> list[Point]:
    """All values of the witnesses for which a claim holds at one point.

    Raises `SymbolicError` on a mesh of more than `MAX_POINTS` places.
    """
    sides = {name: point[name] for name, limit in claim.given if limit is None}
    counts = limits(claim, sides)[1]
    if prod(counts.values()) > MAX_POINTS:
        raise SymbolicError(f"the first undecided mesh has {prod(counts.values())} places")
    values = grid(counts)
    right = np.broadcast_to(np.asarray(evaluate(claim.body, {**point, **values})), size(values))
    return [
        {name: int(axis[row]) for name, axis in values.items()} for row in np.flatnonzero(right)
    ]


def points_on(claim: Claim, sides: Mapping[str, int]) -> int:
    """Number of points of a claim on one mesh, at least 1."""
    return max(1, prod(max(count, 0) for count in limits(claim, sides)[0].values()))


def failing(claim: Claim, sides: Mapping[str, int]) -> Point | None:
    """The first point at which a claim does not hold on a mesh; None if there is none.

    A mesh of more than `MAX_POINTS` points is skipped.
    """
    counts, witnesses = limits(claim, sides)
    # A given name in a held digit (a step that is read on the holder) has one value on both sides:
    # it is part of what has to match.
    shared = {
        name: count
        for name, count in counts.items()
        if any(name in names(match.held) for match in claim.matches)
    }
    if max(prod(counts.values()), prod({**witnesses, **shared}.values())) > MAX_POINTS:
        return None
    values = grid(counts)
    count = size(values) if counts else 1
    if claim.witnesses:
        right = _are_held(claim, sides, values, grid({**shared, **witnesses}), tuple(shared))
    else:
        right = np.broadcast_to(np.asarray(evaluate(claim.body, {**sides, **values})), count)
    wrong = np.flatnonzero(~right)
    if not len(wrong):
        return None
    return {**sides, **{name: int(axis[wrong[0]]) for name, axis in values.items()}}


def _are_held(
    claim: Claim,
    sides: Mapping[str, int],
    given: dict[str, Array],
    witnesses: dict[str, Array],
    shared: tuple[str, ...],
) -> NDArray[np.bool_]:
    """Whether the digits needed at each given point are among those held at some point."""
    needed = [given[name] for name in shared]
    needed += [column(match.needed, {**sides, **given}, size(given)) for match in claim.matches]
    held = [witnesses[name] for name in shared]
    held += [column(match.held, {**sides, **witnesses}, size(witnesses))
             for match in claim.matches]  # fmt: skip
    # Nothing has to match, so any device will do, if there is one.
    if not needed:
        return np.full(size(given), size(witnesses) > 0)
    # All digits as one number, so that *is it held anywhere?* is a search in one array: (need_r,
    # need_c) = (1, 2) with radix 3 is 5. Compared pairwise, 1,000 given points and 1,000 places
    # would be a million rows.
    key, held_key = np.zeros(size(given), np.int64), np.zeros(size(witnesses), np.int64)
    for need, have in zip(needed, held, strict=True):
        low = min(need.min(initial=0), have.min(initial=0))
        radix = max(need.max(initial=0), have.max(initial=0)) - low + 1
        key, held_key = key * radix + need - low, held_key * radix + have - low
    return np.isin(key, held_key)
