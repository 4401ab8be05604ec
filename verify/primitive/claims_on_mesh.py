"""Claims on one concrete mesh: every expression is evaluated once, on arrays of all points."""

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
MOST_POINTS = 4_000_000
"""Points of one claim on one mesh that are looked at."""


def limits(claim: Claim, sides: Mapping[str, int]) -> tuple[Point, Point]:
    """How many values each given and each found name has, sides left out."""
    given = {name: int(evaluate(limit, sides)) for name, limit in claim.given if limit is not None}
    found = {name: int(evaluate(limit, sides)) for name, limit in claim.found}
    return given, found


def grid(counts: Mapping[str, int]) -> dict[str, Array]:
    """All values of several names at once, each as a flat array."""
    axes = np.indices(tuple(max(count, 0) for count in counts.values()))
    return {name: axis.ravel() for name, axis in zip(counts, axes, strict=True)}


def size(values: Mapping[str, Array]) -> int:
    """How many points there are; 1 where no name is given."""
    return next((len(column) for column in values.values()), 1)


def column(node: Number, values: Mapping[str, Array | int], count: int) -> Array:
    """An expression at every point."""
    return np.broadcast_to(np.asarray(evaluate(node, values)), count)


def choices(claim: Claim, point: Point) -> list[Point]:
    """All values of the found names for which a claim holds at one point.

    Raises `SymbolicError` on a mesh of more than `MOST_POINTS` places.
    """
    sides = {name: point[name] for name, limit in claim.given if limit is None}
    counts = limits(claim, sides)[1]
    if prod(counts.values()) > MOST_POINTS:
        raise SymbolicError(f"the first mesh that is left open has {prod(counts.values())} places")
    values = grid(counts)
    right = np.broadcast_to(np.asarray(evaluate(claim.body, {**point, **values})), size(values))
    return [{name: int(axis[at]) for name, axis in values.items()} for at in np.flatnonzero(right)]


def failing(claim: Claim, sides: Mapping[str, int]) -> Point | None:
    """The first point at which a claim does not hold on a mesh; None if there is none.

    A mesh of more than `MOST_POINTS` points is not looked at.
    """
    counts, found = limits(claim, sides)
    shared = {
        name: count
        for name, count in counts.items()
        if any(name in names(match.there) for match in claim.matches)
    }
    if max(prod(counts.values()), prod({**found, **shared}.values())) > MOST_POINTS:
        return None
    values = grid(counts)
    count = size(values) if counts else 1
    if claim.found:
        right = _are_found(claim, sides, values, grid({**shared, **found}), tuple(shared))
    else:
        right = np.broadcast_to(np.asarray(evaluate(claim.body, {**sides, **values})), count)
    wrong = np.flatnonzero(~right)
    if not len(wrong):
        return None
    return {**sides, **{name: int(axis[wrong[0]]) for name, axis in values.items()}}


def _are_found(
    claim: Claim,
    sides: Mapping[str, int],
    given: dict[str, Array],
    there: dict[str, Array],
    shared: tuple[str, ...],
) -> NDArray[np.bool_]:
    """Whether the digits wanted at each given point are among those of all places."""
    wanted = [given[name] for name in shared]
    wanted += [column(match.wanted, {**sides, **given}, size(given)) for match in claim.matches]
    have = [there[name] for name in shared]
    have += [column(match.there, {**sides, **there}, size(there))
             for match in claim.matches]  # fmt: skip
    if not wanted:
        return np.full(size(given), size(there) > 0)
    key, known = np.zeros(size(given), np.int64), np.zeros(size(there), np.int64)
    for one, other in zip(wanted, have, strict=True):
        low = min(one.min(initial=0), other.min(initial=0))
        radix = max(one.max(initial=0), other.max(initial=0)) - low + 1
        key, known = key * radix + one - low, known * radix + other - low
    return np.isin(key, known)
