"""Finds the number of slices of each digit, as an expression of the sides.

Nothing here is trusted: if a number is wrong, the claims of coverage fail. The number is derived
from bounds of the expressions: `(r + t) % s` is below `s`. If small meshes have other numbers, it
is fitted to them: an affine form of the sides from some side on, and a number for each smaller
side. For example, `where(s == 1, 3, s + 1)` fits 3, 3, 4, 5 and 6 slices at the sides 1 to 5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from operator import mul
from typing import Any

import numpy as np

from primepar.errors import SymbolicError
from primepar.schedule.expression import (
    Expression,
    Number,
    evaluate,
    name,
    names,
    nodes,
    same,
    where,
)  # fmt: skip
from primepar.schedule.primitive import ANY, Primitive
from primepar.schedule.tracing import maps_of
from primepar.verify.primitive.claims_on_mesh import MAX_POINTS, grid

LONGEST = 5
"""Largest side of the meshes that are evaluated."""
MAX_DEVICES = 700
Sides = tuple[int, ...]


def slices_of(primitive: Primitive) -> dict[str, tuple[Number, ...]]:
    """Dim -> number of slices of each digit. Raises `SymbolicError` if no rule fits."""
    # What the maps give on small meshes decides between bounds and fitted rules. Neither is
    # trusted: a number that is too large leaves a sub-operator uncomputed in the claims.
    seen = {sides: _counts(primitive, sides) for sides in _meshes(primitive)}
    bounds = _bounds(primitive)
    counts: dict[str, list[Number]] = {}
    for dim, place in bounds:
        numbers = {sides: on_mesh.get((dim, place), 1) for sides, on_mesh in seen.items()}
        counts.setdefault(dim, []).append(_rule(primitive, dim, bounds[dim, place], numbers))
    return {dim: tuple(numbers) for dim, numbers in counts.items()}


def _meshes(primitive: Primitive) -> Iterator[Sides]:
    sides, lengths = primitive.side_names, primitive.axis_sides.values()
    for mesh in product(range(1, LONGEST + 1), repeat=len(sides)):
        along = dict(zip(sides, mesh, strict=True))
        if prod(along[side] for side in lengths) <= MAX_DEVICES:
            yield mesh


def counts_on(primitive: Primitive, sides: Sides) -> dict[str, tuple[int, ...]]:
    """Dim -> number of slices of each digit, on one mesh."""
    slices: dict[str, list[int]] = {}
    for (dim, _), count in sorted(_counts(primitive, sides).items()):
        slices.setdefault(dim, []).append(count)
    return {dim: tuple(counts) for dim, counts in slices.items()}


def _digits(primitive: Primitive) -> Iterator[tuple[str, int, Any]]:
    """Dim, place and expression of every digit, over all phases and homes."""
    maps = maps_of(primitive)
    for slices in (*maps.phases.values(), *maps.homes.values()):
        for dim, index in slices.items():
            for place, digit in enumerate(index):
                yield dim, place, digit


def _counts(primitive: Primitive, sides: Sides) -> dict[tuple[str, int], int]:
    """Largest value of each digit on one mesh, plus 1."""
    maps = maps_of(primitive)
    along = dict(zip(primitive.side_names, sides, strict=True))
    counts = {axis: along[side] for axis, side in primitive.axis_sides.items()}
    counts["t"] = int(evaluate(maps.steps, along))
    if prod(counts.values()) > MAX_POINTS:
        mesh = ", ".join(f"{side}={length}" for side, length in along.items())
        raise SymbolicError(
            f"there are {prod(counts.values())} devices times steps at {mesh}, more than "
            f"{MAX_POINTS}"
        )
    values = {**along, **grid(counts)}
    largest: dict[tuple[str, int], int] = {}
    for dim, place, digit in _digits(primitive):
        most = 0 if digit is ANY else int(np.max(evaluate(digit, values), initial=0))
        largest[dim, place] = max(largest.get((dim, place), 1), most + 1)
    return largest


def _rule(
    primitive: Primitive, dim: str, bound: Number | None, numbers: dict[Sides, int]
) -> Number:
    """The bound, if all meshes have that number; else an expression fitted to them."""
    sides = primitive.side_names
    if bound is not None and all(
        evaluate(bound, dict(zip(sides, mesh, strict=True))) == number
        for mesh, number in numbers.items()
    ):
        return bound
    # At least three lengths are left after the exceptions: through two there is always an affine
    # form.
    for first in range(1, LONGEST - 1):
        rule = _affine(
            sides, {mesh: n for mesh, n in numbers.items() if min(mesh, default=first) >= first}
        )
        if rule is not None and (first == 1 or len(sides) == 1):
            for before in reversed(range(1, first)):
                # From the last exception on: where(s == 1, 3, where(s == 2, 3, s + 1)).
                rule = where(name(sides[0]) == before, numbers[before,], rule)
            return rule
    raise SymbolicError(
        f"the number of slices of {dim} follows no rule that is affine in the sides"
    )


def _affine(sides: tuple[str, ...], numbers: dict[Sides, int]) -> Number | None:
    """The affine form with whole factors that has all these values; None if there is none."""
    least = min(numbers, default=(1,) * len(sides))
    more = [(*least[:i], least[i] + 1, *least[i + 1 :]) for i in range(len(sides))]
    if not numbers.keys() >= {least, *more}:
        return None  # of many axes, a mesh of side 2 is too large already
    # The differences to the neighbours are the factors: 3, 4, 5 along s is s + 2.
    factors = [numbers[mesh] - numbers[least] for mesh in more]
    rest = numbers[least] - sum(map(mul, factors, least))
    if any(rest + sum(map(mul, factors, mesh)) != number for mesh, number in numbers.items()):
        return None
    rule: Number = rest
    for side, factor in zip(sides, factors, strict=True):
        if factor:
            term = name(side) if factor == 1 else name(side) * factor
            rule = term if isinstance(rule, int) and rule == 0 else term + rule
    return rule


# Bounds of expressions


def _bounds(primitive: Primitive) -> dict[tuple[str, int], Number | None]:
    """The number of slices of every digit by bounds of its expressions; None if there is none."""
    steps = maps_of(primitive).steps
    limits = {axis: name(side) for axis, side in primitive.axis_sides.items()} | {"t": steps}
    bounds: dict[tuple[str, int], Number | None] = {}
    for dim, place, digit in _digits(primitive):
        above = 1 if digit is ANY else _above(digit, limits, frozenset(primitive.side_names))
        earlier = bounds.get((dim, place), 1)
        is_first = isinstance(earlier, int) and earlier == 1
        bounds[dim, place] = above if is_first else _larger(earlier, above)
    return bounds


def _larger(first: Number | None, second: Number | None) -> Number | None:
    """The larger of two limits, if they are equal or the second is 1; else None."""
    if second is None or first is None or same(first, second):
        return first if same(first, second) else None
    return first if isinstance(second, int) and second == 1 else None


def _above(digit: Number, limits: Mapping[str, Number], sides: frozenset[str]) -> Number | None:
    """An exclusive upper limit of an expression, as an expression of the sides; or None.

    `(r + t) % s` is below `s`, and `where(s >= 3, t, 0)` below `where(s >= 3, steps, 1)`.
    """
    above: dict[int, Number | None] = {}

    def of(part: Any) -> Number | None:
        return above[id(part)] if isinstance(part, Expression) else part + 1

    for node in nodes(digit):
        if not isinstance(node, Expression):
            continue
        limit: Number | None = None
        if node.operator == "name":
            # An axis r is below its side s. The side itself is not: of it the limit is s + 1.
            limit = limits.get(node.parts[0], node + 1)
        # Whatever is on the left: a remainder is below its divisor.
        elif node.operator == "%" and names(node.parts[1]) <= sides:
            limit = node.parts[1]
        elif node.operator == "where":
            condition, then, otherwise = node.parts[0], of(node.parts[1]), of(node.parts[2])
            if same(then, otherwise):
                limit = then
            elif then is not None and otherwise is not None and names(condition) <= sides:
                limit = where(condition, then, otherwise)
        above[id(node)] = limit
    return of(digit)
