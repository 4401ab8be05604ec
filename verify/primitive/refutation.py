"""Finds the smallest mesh on which a property fails, and the fault there.

Small meshes are searched first, by the movement that is lowered (`smallest_mesh`). If none of them
is wrong, the claims that Z3 refuted are evaluated on one mesh after the other, up to that of Z3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from heapq import heappop, heappush
from math import prod
from time import perf_counter

from primepar.certify.claims import Claim, Subject, claims
from primepar.errors import SymbolicError
from primepar.schedule.deadline import UnansweredError, in_time
from primepar.schedule.evidence import (
    Homeless,
    InvolvedDevice,
    MapFault,
    Misaligned,
    Miscomputed,
    NoStep,
    Nowhere,
    OtherNumber,
    OutOfRange,
)
from primepar.schedule.expression import evaluate
from primepar.schedule.operators import DIMS, block_name, tensor_dims
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Sequence
from primepar.verify.counterexample.primitive import MeshFault
from primepar.verify.primitive.claims_on_mesh import Point, failing, points_on
from primepar.verify.primitive.decide import Decision, is_idle
from primepar.verify.primitive.slice_counts import counts_on
from primepar.verify.primitive.smallest_mesh import meshes_of, smallest_faults

LARGEST = 16
"""Largest side of the meshes that are searched if no rule gives the number of slices."""
MOST_POINTS = 20_000_000
"""Number of points, over all meshes, at which a claim that Z3 refuted is evaluated."""


def faults(
    subject: Subject, decided: tuple[Decision, ...], open_names: Iterable[str]
) -> dict[str, MeshFault]:
    """Property -> its fault on the smallest mesh that has one; those found until the deadline."""
    refutations: dict[str, MeshFault] = {}
    with suppress(UnansweredError):
        _search(subject, decided, set(open_names), refutations)
    return refutations


def _search(
    subject: Subject, decided: tuple[Decision, ...], names: set[str],
    refutations: dict[str, MeshFault],
) -> None:  # fmt: skip
    """Add the fault of each property. Raises `UnansweredError` at the deadline."""
    primitive = subject.primitive
    # A mistake that begins at side 7 is on no mesh of short sides, but Z3's point names one.
    hints = {_sides(subject, decision.point) for decision in decided if decision.point is not None}
    refutations |= smallest_faults(meshes_of(primitive, hints), names)
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
        refutations |= dict.fromkeys(claim.properties, _fault(subject, claim, point, start))


def _on_meshes(primitive: Primitive) -> dict[str, MeshFault]:
    """Property -> its fault on the smallest mesh on which a claim fails with that mesh's slices."""
    largest = (LARGEST,) * len(primitive.side_names)
    refutations: dict[str, MeshFault] = {}
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
                fault = _fault(subject, claim, point, start)
                refutations |= dict.fromkeys(set(claim.properties) - refutations.keys(), fault)
    return refutations


def _sides(subject: Subject, point: Point) -> tuple[int, ...]:
    return tuple(point[side] for side in subject.primitive.side_names)


def _smallest(subject: Subject, decision: Decision) -> Point:
    """The point on the smallest mesh where the claim fails; at the latest that of Z3.

    Z3 gives the smallest sum of the sides, which need not be the fewest devices.
    """
    assert decision.point is not None
    largest = _sides(subject, decision.point)
    # Z3's 3 x 2 has a smaller sum of sides than 1 x 5, but more devices. The mesh that a reader
    # draws is the one of the fewest.
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

    # A heap of neighbours: from 2 x 3 come 3 x 3 and 2 x 4. So no list of all meshes is made.
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


def _fault(subject: Subject, claim: Claim, point: Point, start: float) -> MeshFault:
    """The fault where a claim fails; `start` is when its search began."""
    sequence = Sequence.of(subject.primitive, *_sides(subject, point))
    return MeshFault(sequence, _of_claim(subject, claim, point), perf_counter() - start)


def _of_claim(subject: Subject, claim: Claim, point: Point) -> MapFault:
    kind, _, rest = claim.name.partition(" ")
    if kind == "coverage":
        return Miscomputed(rest, dict(_cell(subject, claim, point, DIMS)))
    if kind == "count":
        return OtherNumber(rest)
    if kind == "home":
        return Homeless(rest, _block(subject, claim, point, rest))
    if kind == "steps":
        return NoStep(int(evaluate(subject.maps.steps, point)))
    if kind in ("divisors", "range"):
        return OutOfRange(_device(subject, point), rest or None)
    phase, tensor, *then = claim.name.split()
    block = _block(subject, claim, point, tensor)
    if then and then[0] == "to":
        device = _device(subject, point)
        gradient = {"O": "dO", "dW": "W"}.get(tensor, tensor)
        block = block.replace(tensor, gradient, 1)
        if not claim.witnesses:
            return Misaligned(then[1], device, block, phase)
        return Nowhere(then[1], device, block, after=phase)
    # The claim is read at step t, and the block is missed at t + 1.
    return Nowhere(phase, _device(subject, point, point.get("t", 0) + 1), block)


def _device(subject: Subject, point: Point, step: int | None = None) -> InvolvedDevice:
    """The device at a point; several places of a virtual axis are on one device."""
    coordinates = {axis: point.get(axis, 0) for axis in subject.primitive.axis_sides}
    sequence = Sequence.of(subject.primitive, *_sides(subject, point))
    # Places along a virtual axis are one device, so its coordinate is left out.
    device = tuple(coordinates[axis] for axis in sequence.elements[0].axes)
    return InvolvedDevice(sequence.coordinates.index(device), coordinates, step)


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
            # Major digit first: (1, 2) of 2 x 3 slices is slice 1 * 3 + 2 = 5.
            flat = flat * int(evaluate(count, point)) + int(digit)
        yield dim, flat
