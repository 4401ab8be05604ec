"""Finds the smallest mesh on which a property fails, with one sentence about the place.

Small meshes are searched first, by the movement that is lowered (`smallest_mesh`). If none of them
is wrong, the claims that Z3 refuted are evaluated on one mesh after the other, up to that of Z3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from heapq import heappop, heappush
from math import prod
from time import perf_counter

from primepar.certify.claims import Claim, Subject, claims
from primepar.errors import SymbolicError
from primepar.schedule.counterexample import Counterexample
from primepar.schedule.deadline import UnansweredError, in_time
from primepar.schedule.expression import evaluate
from primepar.schedule.operators import DIMS, block_name, tensor_dims
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Element
from primepar.verify.counterexample.primitive import of_primitive
from primepar.verify.primitive.claims_on_mesh import Point, failing, points_on
from primepar.verify.primitive.decide import Decision
from primepar.verify.primitive.slice_counts import counts_on
from primepar.verify.primitive.smallest_mesh import mesh_text, meshes_of, smallest_faults

LARGEST = 16
"""Largest side of the meshes that are searched if no rule gives the number of slices."""
MOST_POINTS = 20_000_000
"""Number of points, over all meshes, at which a claim that Z3 refuted is evaluated."""


@dataclass(frozen=True)
class Refutation:
    """A fault at the smallest sides, as one sentence."""

    sentence: str
    seconds: float
    details: Counterexample | None = None


def faults(
    subject: Subject, decided: Sequence[Decision], open_names: Iterable[str]
) -> dict[str, Refutation]:
    """Property -> its fault on the smallest mesh that has one; those found until the deadline."""
    refutations: dict[str, Refutation] = {}
    with suppress(UnansweredError):
        _search(subject, decided, set(open_names), refutations)
    return refutations


def _search(
    subject: Subject, decided: Sequence[Decision], names: set[str],
    refutations: dict[str, Refutation],
) -> None:  # fmt: skip
    """Add the fault of each property. Raises `UnansweredError` at the deadline."""
    primitive = subject.primitive
    hints = {_sides(subject, decision.point) for decision in decided if decision.point is not None}
    for name, small in smallest_faults(meshes_of(primitive, hints), names):
        details = of_primitive(primitive, small.sides, name, small.sentence)
        refutations[name] = Refutation(small.sentence, small.seconds, details)
    if not decided and not refutations:
        refutations |= _on_meshes(primitive)
    for decision in decided:
        claim = decision.claim
        if decision.point is None or refutations.keys() & set(claim.properties):
            continue
        if (claim.name == "steps") is not is_idle(subject, decision.point):
            # A number of slices is too small there, which only the prover has stated; or another
            # claim fails where nothing is done.
            continue
        start = perf_counter()
        point = _smallest(subject, decision)
        refutation = Refutation(_sentence(subject, claim, point), perf_counter() - start)
        refutations |= dict.fromkeys(claim.properties, refutation)


def _on_meshes(primitive: Primitive) -> dict[str, Refutation]:
    """Property -> its fault on the smallest mesh on which a claim fails with that mesh's slices."""
    largest = (LARGEST,) * len(primitive.side_names)
    refutations: dict[str, Refutation] = {}
    for sides in in_time(_meshes(Subject(primitive, {}), largest)):
        if refutations:
            break
        start = perf_counter()
        try:
            subject = Subject(primitive, counts_on(primitive, sides))
        except SymbolicError:
            break  # too many places, on larger meshes too
        along = dict(zip(primitive.side_names, sides, strict=True))
        for claim in claims(subject):
            point = failing(claim, along)
            if point is not None:
                fault = Refutation(_sentence(subject, claim, point), perf_counter() - start)
                refutations |= dict.fromkeys(set(claim.properties) - refutations.keys(), fault)
    return refutations


def is_idle(subject: Subject, sides: Point) -> bool:
    """Whether a phase has no step on a mesh."""
    return bool(evaluate(subject.maps.steps, sides) < 1)


def _sides(subject: Subject, point: Point) -> tuple[int, ...]:
    return tuple(point[side] for side in subject.primitive.side_names)


def _smallest(subject: Subject, decision: Decision) -> Point:
    """The point on the smallest mesh where the claim fails; at the latest that of Z3.

    Z3 gives the smallest sum of the sides, which need not be the fewest devices.
    """
    assert decision.point is not None
    largest = _sides(subject, decision.point)
    evaluated = 0
    for sides in _meshes(subject, largest):
        along = dict(zip(subject.primitive.side_names, sides, strict=True))
        if decision.claim.name != "steps" and is_idle(subject, along):
            continue
        evaluated += points_on(decision.claim, along)
        if evaluated > MOST_POINTS:
            break
        point = failing(decision.claim, along)
        if point is not None:
            return point
    return decision.point


def _meshes(subject: Subject, largest: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield sides up to the largest, fewest devices first.

    A longer side never has fewer devices, so the next mesh is a neighbour of one already given.
    """
    names, axes = subject.primitive.side_names, subject.primitive.axis_sides.values()

    def devices(sides: tuple[int, ...]) -> int:
        length = dict(zip(names, sides, strict=True))
        return prod(length[side] for side in axes)

    first = (1,) * len(names)
    waiting, known = [(devices(first), first)], {first}
    while waiting:
        _, sides = heappop(waiting)
        yield sides
        for place, side in enumerate(sides):
            longer = (*sides[:place], side + 1, *sides[place + 1 :])
            if side < largest[place] and longer not in known:
                known.add(longer)
                heappush(waiting, (devices(longer), longer))


def _sentence(subject: Subject, claim: Claim, point: Point) -> str:
    """A sentence: where the claim fails, what was expected, and what to write instead."""
    sides = _sides(subject, point)
    lengths = Element(subject.primitive, sides).axis_lengths
    mesh = mesh_text(subject.primitive.side_names, sides, lengths)
    return f"{mesh}: {_about(subject, claim, point)}"


def _about(subject: Subject, claim: Claim, point: Point) -> str:
    kind, _, rest = claim.name.partition(" ")
    if kind == "coverage":
        cell = ", ".join(f"{dim}={index}" for dim, index in _cell(subject, claim, point, DIMS))
        return f"{rest} sub-operator ({cell}): expected one device to compute it, got none"
    if kind == "count":
        return f"{rest}: expected as many sub-operators as devices times steps, got another number"
    if kind == "home":
        block = _block(subject, claim, point, rest)
        return (
            f"home of {rest}: expected {block} to be resident on some device, got it on none: "
            f"let the home of {rest} assign it to one"
        )
    if kind == "steps":
        steps = evaluate(subject.maps.steps, point)
        return f"expected 1 step or more in each phase, got {steps}: change steps"
    if kind == "divisors":
        place = _device(subject, point)
        return f"{place}: expected % and // by 1 or more, got less: use the length of a side"
    if kind == "range":
        place = _device(subject, point)
        return f"{place}: expected the home of {rest} in range, got another: wrap with %"
    return _missing(subject, claim, point)


def _missing(subject: Subject, claim: Claim, point: Point) -> str:
    """A sentence about a block that a device needs and no device has."""
    phase, tensor, *then = claim.name.split()
    block, place = _block(subject, claim, point, tensor), _device(subject, point)
    if then and then[0] == "to":
        gradient = {"O": "dO", "dW": "W"}.get(tensor, tensor)
        block = block.replace(tensor, gradient, 1)
        if not claim.witnesses:
            return (
                f"{then[1]} starts on {place}: expected {block} here, got another block from "
                f"{phase}: end {phase} where {then[1]} starts"
            )
        return (
            f"{then[1]} starts on {place}: expected {block} on some device at the end of {phase}, "
            f"got it on none: end {phase} with all blocks that {then[1]} starts with"
        )
    before = point.get("t", 0)
    return (
        f"{phase}, {place} at t={before + 1}: expected {block} to be on some device at "
        f"t={before}, got it on none: let a device use it at t={before}"
    )


def _device(subject: Subject, point: Point) -> str:
    element = Element(subject.primitive, _sides(subject, point))
    axes = subject.primitive.axis_sides
    coordinates = tuple(point.get(axis, 0) for axis in axes)
    named = ", ".join(f"{axis}={value}" for axis, value in zip(axes, coordinates, strict=True))
    return f"device {element.devices.index(coordinates)}" + (f" ({named})" if named else "")


def _block(subject: Subject, claim: Claim, point: Point, tensor: str) -> str:
    cell = dict(_cell(subject, claim, point, tensor_dims(tensor)))
    return block_name(tensor, tuple(cell[dim] for dim in tensor_dims(tensor) if dim in cell))


def _cell(
    subject: Subject, claim: Claim, point: Point, dims: Iterable[str]
) -> Iterator[tuple[str, int]]:
    """Yield (dim, slice) of the block that a claim needs at a point; an open digit is 0."""
    needed = {(match.dim, match.place): match.needed for match in claim.matches}
    for dim in dims:
        if dim == "B" and "B" not in subject.slices:
            continue
        flat = 0
        for place, count in enumerate(subject.slices.get(dim, ())):
            digit = evaluate(needed.get((dim, place), 0), point)
            flat = flat * int(evaluate(count, point)) + int(digit)
        yield dim, flat
