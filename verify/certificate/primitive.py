"""Certificates of primitives: the rules that were fitted to them, and why no case breaks them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import Any

from msgspec.structs import replace

from primepar.certify.cases import Case
from primepar.certify.primitive import (
    Meshes,
    PrimitiveCertificate,
    Rule,
    Sides,
    Span,
    Witness,
    claims,
    moves,
)
from primepar.errors import CertificateError, PrimitiveError
from primepar.schedule.operators import PHASES, Phase
from primepar.schedule.primitive import ANY, Primitive, call_map
from primepar.verify.certificate.answers import answers
from primepar.verify.deadline import UndecidedError, deadline
from primepar.verify.primitive.affine import Affine
from primepar.verify.primitive.claims import Movement
from primepar.verify.primitive.fit import Sample, fit_affine, fit_radices, samples, transitions
from primepar.verify.primitive.fit_sender import FitError, Row
from primepar.verify.primitive.locate import Locator, fit_locators

Points = list[tuple[Row, Row, Row]]
"""What a rule is given, what it should tell, and the lengths that it goes round, of each point."""


def primitive_certificate(primitive: Primitive, timeout: float = 60.0) -> PrimitiveCertificate:
    """The certificate of a primitive. Raises `CertificateError` where one of its claims fails."""
    name = "rules"
    try:
        with deadline(timeout):
            given = _rules(primitive)
            found = {}
            for name, holds, of in claims(primitive):
                found[name] = answers(_deciding(primitive, given, holds, of))
    except (FitError, UndecidedError, PrimitiveError, CertificateError) as error:
        raise CertificateError(f"no certificate: {name}: {error}") from None
    return replace(given, answers=found)


def _deciding(
    primitive: Primitive, given: PrimitiveCertificate, holds: Callable[..., bool], of: Any
) -> Callable[[Case], bool]:
    return lambda case: holds(Meshes(primitive, given, case), of)


def _rules(primitive: Primitive) -> PrimitiveCertificate:
    """A certificate without answers."""
    seen = samples(primitive)
    radices = fit_radices(seen)
    located = fit_locators(seen, radices) if primitive.home else {}
    fitted = [] if primitive.home else [Movement.fitted(seen, each) for each in transitions()]
    names = [] if primitive.home else [move.name for move in moves()]
    return PrimitiveCertificate(
        format="primepar-certificate",
        version=1,
        slices={dim: tuple(map(_sides, digits)) for dim, digits in radices.items()},
        witnesses={phase: _witness(seen, phase) for phase in PHASES},
        moves={name: _spans(each) for name, each in zip(names, fitted, strict=True)},
        homes={tensor: _home(each) for tensor, each in located.items()},
        answers={},
    )


def _sides(form: Affine) -> Sides:
    return form.constant, form.coefficients


def _spans(movement: Movement) -> tuple[Span, ...]:
    if movement.reason is not None or movement.rests:
        raise FitError(f"{movement.name}: {movement.reason or 'sums rest by no one rule'}")
    return tuple(
        Span(_sides(span.first), Rule(span.sender.matrix, span.sender.offset))
        if span.sender is not None
        else Span(_sides(span.first), None)
        for span in movement.spans
    )


def _home(locator: Locator | FitError) -> Rule:
    if isinstance(locator, FitError):
        raise locator
    rows = zip(locator.coordinates, locator.digits, strict=True)
    return Rule(tuple((*row, *digits) for row, digits in rows), locator.offset)


def _witness(seen: list[Sample], phase: Phase) -> Witness:
    """A rule for the step, and one for the device, or two where the first or last step differs."""
    places = [_places(sample, phase) for sample in seen]
    steps = [sample.element.steps for sample in seen]
    told = _rule([(at, (t,), (count,)) for own, count in zip(places, steps, strict=True)
                  for at, (_, t) in own.items()])  # fmt: skip
    zero = fit_affine(seen, [0] * len(seen))
    for later in ([], [1] * len(seen), [count - 1 for count in steps]):
        ends = [(0, end) for end in later] or [(0, count) for count in steps]
        starts = list(zip(later, steps, strict=True)) if later else []
        rules = [
            _rule([(at, device, sample.lengths)
                   for sample, own, (first, end) in zip(seen, places, part, strict=True)
                   for at, (device, t) in own.items() if first <= t < end])
            for part in (ends, starts) if part
        ]  # fmt: skip
        if told is not None and None not in rules:
            firsts = [zero, fit_affine(seen, later)] if later else [zero]
            spans = zip(map(_sides, firsts), rules, strict=True)
            return Witness(told, tuple(Span(first, rule) for first, rule in spans))
    raise FitError(f"{phase}: no one rule says where a sub-operator is computed")


def _places(sample: Sample, phase: Phase) -> dict[Row, tuple[Row, int]]:
    """Digits of each sub-operator -> its device and step."""
    element, found = sample.element, {}
    for device, t in product(sample.devices, range(element.steps)):
        named = call_map(element.primitive, phase, device, t, element.sides)
        digits = [at for index in named.values() for at in index]
        if ANY in digits:
            raise FitError(f"{phase}: a digit is left open before one that is not")
        found[tuple(digits)] = (device, t)
    return found


def _rule(points: Points) -> Rule | None:
    """The rule that explains all points, with factors of -1, 0 and 1, as few as can be."""
    rows = []
    for axis in range(len(points[0][1])):
        row = next(_rows([(at, told[axis], lengths[axis]) for at, told, lengths in points]), None)
        if row is None:
            return None
        rows.append(row)
    return Rule(tuple(factors for factors, _ in rows), tuple(step for _, step in rows))


def _rows(points: Sequence[tuple[Row, int, int]]) -> Iterator[tuple[Row, int]]:
    count = len(points[0][0])
    for factors in sorted(product((0, 1, -1), repeat=count), key=lambda row: sum(map(abs, row))):
        for step in (0, 1, -1):
            if _explains(factors, step, points):
                yield factors, step


def _explains(factors: Row, step: int, points: Iterable[tuple[Row, int, int]]) -> bool:
    return all(
        (sum(a * b for a, b in zip(factors, at, strict=True)) + step - told) % length == 0
        for at, told, length in points
    )
