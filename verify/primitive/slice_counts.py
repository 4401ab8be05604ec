"""How many slices each digit has, as an expression of the sides.

Nothing here is trusted: where a number is wrong, the claims of coverage fail. It is read off the
expressions by their bounds (`... % s` is below `s`). Where that is not what small meshes have, it
is fitted to them: an affine form of the sides from some side on, a number for each side before.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from primepar.errors import SymbolicError
from primepar.schedule.expression import Expression, Number, evaluate, name, names, where
from primepar.schedule.primitive import ANY, Primitive
from primepar.schedule.tracing import maps_of
from primepar.verify.primitive.claims_on_mesh import grid

LONGEST = 5
"""Side of the meshes that are looked at."""
MOST_DEVICES = 700
Sides = tuple[int, ...]


def slices_of(primitive: Primitive) -> dict[str, tuple[Number, ...]]:
    """Dim -> number of slices of each digit. Raises `SymbolicError` where no rule gives it."""
    seen = {sides: _counts(primitive, sides) for sides in _meshes(primitive)}
    bounds = _bounds(primitive)
    counts: dict[str, list[Number]] = {}
    for dim, place in bounds:
        numbers = {sides: found.get((dim, place), 1) for sides, found in seen.items()}
        counts.setdefault(dim, []).append(_rule(primitive, dim, bounds[dim, place], numbers))
    return {dim: tuple(numbers) for dim, numbers in counts.items()}


def _meshes(primitive: Primitive) -> Iterator[Sides]:
    sides, lengths = primitive.side_names, primitive.axis_sides.values()
    for mesh in product(range(1, LONGEST + 1), repeat=len(sides)):
        along = dict(zip(sides, mesh, strict=True))
        if np.prod([along[side] for side in lengths]) <= MOST_DEVICES:
            yield mesh


def counts_on(primitive: Primitive, sides: Sides) -> dict[str, tuple[int, ...]]:
    """Dim -> number of slices of each digit, on one mesh."""
    found: dict[str, list[int]] = {}
    for (dim, _), count in sorted(_counts(primitive, sides).items()):
        found.setdefault(dim, []).append(count)
    return {dim: tuple(counts) for dim, counts in found.items()}


def _digits(primitive: Primitive) -> Iterator[tuple[str, int, Any]]:
    """Dim, place and expression of every digit, over all phases and homes."""
    maps = maps_of(primitive)
    for slices in (*maps.phases.values(), *maps.homes.values()):
        for dim, index in slices.items():
            for place, digit in enumerate(index):
                yield dim, place, digit


def _counts(primitive: Primitive, sides: Sides) -> dict[tuple[str, int], int]:
    """Largest value of each digit on one mesh, and 1 more."""
    maps = maps_of(primitive)
    along = dict(zip(primitive.side_names, sides, strict=True))
    counts = {axis: along[side] for axis, side in primitive.axis_sides.items()}
    values = {**along, **grid({**counts, "t": int(evaluate(maps.steps, along))})}
    found: dict[tuple[str, int], int] = {}
    for dim, place, digit in _digits(primitive):
        most = 0 if digit is ANY else int(np.max(evaluate(digit, values), initial=0))
        found[dim, place] = max(found.get((dim, place), 1), most + 1)
    return found


def _rule(
    primitive: Primitive, dim: str, bound: Number | None, numbers: dict[Sides, int]
) -> Number:
    """The bound, where it is what all meshes have; else what is fitted to them."""
    sides = primitive.side_names
    if bound is not None and all(
        evaluate(bound, dict(zip(sides, mesh, strict=True))) == number
        for mesh, number in numbers.items()
    ):
        return bound
    for first in range(1, LONGEST - 1):
        rule = _affine(sides, {mesh: n for mesh, n in numbers.items() if min(mesh) >= first})
        if rule is not None and (first == 1 or len(sides) == 1):
            for before in reversed(range(1, first)):
                rule = where(name(sides[0]) == before, numbers[before,], rule)
            return rule
    raise SymbolicError(
        f"the number of slices of {dim} follows no rule that is affine in the sides"
    )


def _affine(sides: tuple[str, ...], numbers: dict[Sides, int]) -> Number | None:
    """The affine form with whole factors that gives all numbers."""
    rows = np.array([(1, *mesh) for mesh in numbers], float)
    wanted = np.array(list(numbers.values()), float)
    factors = np.rint(np.linalg.lstsq(rows, wanted, rcond=None)[0]).astype(int)
    if not np.array_equal(rows @ factors, wanted):
        return None
    rule: Number = int(factors[0])
    for side, factor in zip(sides, factors[1:], strict=True):
        if factor:
            term = name(side) if factor == 1 else name(side) * int(factor)
            rule = term if isinstance(rule, int) and rule == 0 else term + rule
    return rule


# Bounds of expressions


def _bounds(primitive: Primitive) -> dict[tuple[str, int], Number | None]:
    """A number of slices of every digit by the bounds of its expressions; None if there is none."""
    steps = maps_of(primitive).steps
    limits = {axis: name(side) for axis, side in primitive.axis_sides.items()} | {"t": steps}
    found: dict[tuple[str, int], Number | None] = {}
    for dim, place, digit in _digits(primitive):
        above = 1 if digit is ANY else _above(digit, limits, frozenset(primitive.side_names))
        known = found.get((dim, place), 1)
        either = isinstance(known, int) and known == 1
        found[dim, place] = above if either else _larger(known, above)
    return found


def _larger(one: Number | None, other: Number | None) -> Number | None:
    """One of two limits, where they are the same or one is 1."""
    if other is None or one is None or str(one) == str(other):
        return one if str(one) == str(other) else None
    return one if isinstance(other, int) and other == 1 else None


def _above(node: Any, limits: dict[str, Number], sides: frozenset[str]) -> Number | None:
    """A limit that an expression stays below, as an expression of the sides."""
    if isinstance(node, int):
        return node + 1
    assert isinstance(node, Expression)
    if node.operator == "name":
        text = node.parts[0]
        return limits.get(text, node + 1)
    if node.operator == "%":
        return node.parts[1] if names(node.parts[1]) <= sides else None
    if node.operator == "where":
        condition, *branches = node.parts
        then, otherwise = (_above(branch, limits, sides) for branch in branches)
        if then is None or otherwise is None or str(then) == str(otherwise):
            return then if str(then) == str(otherwise) else None
        return where(condition, then, otherwise) if names(condition) <= sides else None
    return None
