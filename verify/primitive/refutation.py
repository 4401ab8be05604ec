"""The smallest mesh on which a property fails, with one sentence about the place.

Small meshes are searched as they are lowered (`search`). Where none of them is wrong, the claims
that Z3 found wrong are looked at on one mesh after the other, up to the one that Z3 found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from time import perf_counter

from primepar.certify.claims import Claim, Subject, claims
from primepar.schedule.counterexample import Counterexample
from primepar.schedule.expression import evaluate
from primepar.schedule.operators import DIMS, block_name, tensor_dims
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Element
from primepar.verify.counterexample.primitive import of_primitive
from primepar.verify.primitive.claims_on_mesh import Point, failing
from primepar.verify.primitive.decide import Decision
from primepar.verify.primitive.slice_counts import counts_on
from primepar.verify.primitive.smallest_mesh import smallest_faults

LARGEST = 16
"""Sides up to which meshes are looked at where no rule gives the number of slices."""


@dataclass(frozen=True)
class Refutation:
    """What is wrong at the smallest sides, in one sentence."""

    sentence: str
    seconds: float
    details: Counterexample | None = None


def faults(
    subject: Subject, decided: Sequence[Decision], open_names: Iterable[str], end: float
) -> dict[str, Refutation]:
    """Property -> its fault on the smallest mesh that has one, as far as the time goes."""
    primitive, names = subject.primitive, set(open_names)
    hints = {_sides(subject, each.point) for each in decided if each.point is not None}
    found = {}
    for name, small in smallest_faults(primitive, names, hints, end).items():
        details = of_primitive(primitive, small.sides, name, small.sentence)
        found[name] = Refutation(small.sentence, small.seconds, details)
    if not decided:
        return found or _on_meshes(primitive, end)
    for each in decided:
        if each.point is None or found.keys() & set(each.claim.properties):
            continue
        start = perf_counter()
        point = _smallest(subject, each, end)
        sentence = _sentence(subject, each.claim, point)
        found |= dict.fromkeys(each.claim.properties, Refutation(sentence, perf_counter() - start))
    return found


def _on_meshes(primitive: Primitive, end: float) -> dict[str, Refutation]:
    """Property -> a fault, on the smallest mesh that has one, of claims with that mesh's slices."""
    largest = (LARGEST,) * len(primitive.side_names)
    found: dict[str, Refutation] = {}
    for sides in _meshes(Subject(primitive, {}), largest):
        start = perf_counter()
        if found or start > end:
            break
        subject = Subject(primitive, counts_on(primitive, sides))
        along = dict(zip(primitive.side_names, sides, strict=True))
        for claim in claims(subject):
            point = failing(claim, along)
            if point is not None:
                fault = Refutation(_sentence(subject, claim, point), perf_counter() - start)
                found |= dict.fromkeys(set(claim.properties) - found.keys(), fault)
    return found


def _sides(subject: Subject, point: Point) -> tuple[int, ...]:
    return tuple(point[side] for side in subject.primitive.side_names)


def _smallest(subject: Subject, decision: Decision, end: float) -> Point:
    """The point on the smallest mesh where the claim fails, at worst that of Z3."""
    assert decision.point is not None
    largest = _sides(subject, decision.point)
    for sides in _meshes(subject, largest):
        if perf_counter() > end:
            break
        along = dict(zip(subject.primitive.side_names, sides, strict=True))
        point = failing(decision.claim, along)
        if point is not None:
            return point
    return decision.point


def _meshes(subject: Subject, largest: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Sides up to the largest, fewest devices first."""
    names, axes = subject.primitive.side_names, subject.primitive.axis_sides.values()

    def devices(sides: tuple[int, ...]) -> int:
        length = dict(zip(names, sides, strict=True))
        return prod(length[side] for side in axes)

    every = product(*(range(1, side + 1) for side in largest))
    yield from sorted(every, key=lambda sides: (devices(sides), sides))


def _sentence(subject: Subject, claim: Claim, point: Point) -> str:
    """Where the claim fails, what was expected there, and what to write instead."""
    element = Element(subject.primitive, _sides(subject, point))
    named = ", ".join(f"{name}={point[name]}" for name in subject.primitive.side_names)
    mesh = "x".join(map(str, element.axis_lengths)) or "1"
    return f"{named or 'any side'} ({mesh} devices): {_about(subject, claim, point)}"


def _about(subject: Subject, claim: Claim, point: Point) -> str:
    kind, _, rest = claim.name.partition(" ")
    if kind == "coverage":
        cell = ", ".join(f"{dim}={at}" for dim, at in _cell(subject, claim, point, DIMS))
        return f"{rest} sub-operator ({cell}): expected one device to compute it, got none"
    if kind == "count":
        return f"{rest}: expected as many sub-operators as devices times steps, got another number"
    if kind == "home":
        block = _block(subject, claim, point, rest)
        return (
            f"home of {rest}: expected {block} to rest on some device, got it on none: "
            f"let the home of {rest} give it to one"
        )
    if kind in ("steps", "range"):
        place = _device(subject, point)
        return f"{place}: expected steps, slices and indices in range, got others: wrap with %"
    return _missing(subject, claim, point)


def _missing(subject: Subject, claim: Claim, point: Point) -> str:
    """A block that a device needs and no device has."""
    phase, tensor, *then = claim.name.split()
    block, place = _block(subject, claim, point, tensor), _device(subject, point)
    if then and then[0] == "to":
        gradient = {"O": "dO", "dW": "W"}.get(tensor, tensor)
        block = block.replace(tensor, gradient, 1)
        if not claim.found:
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
    at = tuple(point.get(axis, 0) for axis in axes)
    named = ", ".join(f"{axis}={value}" for axis, value in zip(axes, at, strict=True))
    return f"device {element.devices.index(at)}" + (f" ({named})" if named else "")


def _block(subject: Subject, claim: Claim, point: Point, tensor: str) -> str:
    cell = dict(_cell(subject, claim, point, tensor_dims(tensor)))
    return block_name(tensor, tuple(cell[dim] for dim in tensor_dims(tensor) if dim in cell))


def _cell(
    subject: Subject, claim: Claim, point: Point, dims: Iterable[str]
) -> Iterator[tuple[str, int]]:
    """Dim -> slice that a claim wants at a point; an open digit is 0."""
    wanted = {(match.dim, match.place): match.wanted for match in claim.matches}
    for dim in dims:
        if dim == "B" and "B" not in subject.slices:
            continue
        flat = 0
        for place, count in enumerate(subject.slices.get(dim, ())):
            digit = evaluate(wanted.get((dim, place), 0), point)
            flat = flat * int(evaluate(count, point)) + int(digit)
        yield dim, flat
