"""Checks the certificate of a primitive, for all lengths of the sides of its mesh.

A certificate has the number of slices of every digit, an expression for everything that a claim
wants found, and for each claim what to answer at each comparison. The claims are not in it: they
are made anew from the primitive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from primepar.certify.cases import Answer, Case, cases
from primepar.certify.certificate_format import PrimitiveCertificate, SequenceCertificate, map_texts
from primepar.certify.claims import Claim, Subject, claims
from primepar.errors import CertificateError, ClaimError
from primepar.schedule.expression import Number, names, parse
from primepar.schedule.nesting import Nesting
from primepar.schedule.polynomial_form import Form
from primepar.schedule.primitive import Primitive


def certify_primitive(given: PrimitiveCertificate, primitive: Primitive) -> int:
    """Check a certificate and count its cases.

    Raises `CertificateError` if it is about another primitive, `ClaimError` for what does not hold.
    """
    if given.maps != map_texts(primitive):
        raise CertificateError(
            f"expected a certificate of {type(primitive).__name__}, got one of another primitive: "
            "its maps are not the same"
        )
    subject = Subject(primitive, _slices(given, primitive), given.turns)
    wanted = {claim.name: claim for claim in claims(subject)}
    found, sought = given.found, {name for name, claim in wanted.items() if claim.found}
    if given.answers.keys() != wanted.keys() or found.keys() != sought:
        raise ClaimError("answers: expected those of every claim about this primitive, got others")
    return sum(
        certify_claim(claim, found.get(name, {}), given.answers[name])
        for name, claim in wanted.items()
    )


def certify_claim(claim: Claim, found: Mapping[str, str], answers: Sequence[Answer]) -> int:
    """Follow all cases of one claim and count them. Raises `ClaimError` where it does not hold."""
    followed = 0
    if found.keys() != {name for name, _ in claim.found}:
        raise ClaimError(
            f"{claim.name}: expected an expression for what is to be found, got others"
        )
    try:
        nodes = {name: _number(text) for name, text in found.items()}
        for case in cases(answers):
            followed += 1
            if not holds(claim, nodes, case):
                raise ClaimError("expected it to hold in every case, got one where it does not")
    except KeyError as error:
        raise ClaimError(f"{claim.name}: expected names of this primitive, got {error}") from None
    except ClaimError as error:
        raise ClaimError(f"{claim.name}: {error}") from None
    return followed


def holds(claim: Claim, found: Mapping[str, Number], case: Case) -> bool:
    """Whether a claim holds in a case, with these expressions for what is to be found."""
    names: dict[str, Form] = {}
    for name, limit in claim.given:
        below = None if limit is None else case.value(limit, names)
        names[name] = case.variable(name, 1 if limit is None else 0, below)
    taken = {name: case.value(found[name], names) for name, _ in claim.found}
    for name, limit in claim.found:
        room = case.value(limit, names).plus(taken[name], -1).plus(Form.of(-1))
        if not (case.decide(taken[name]) and case.decide(room)):
            return False
    return case.holds(claim.body, {**names, **taken})


def certify_sequence(given: SequenceCertificate, nesting: Nesting) -> int:
    """Check the certificate of a sequence, count its cases, and raise as `certify_primitive` does.

    What a step needs when an outer member goes on is claimed of the members inside it (`turns`).
    """
    if len(given.members) != len(nesting.members):
        raise CertificateError(
            f"expected a certificate of {len(nesting.members)} members, got {len(given.members)}"
        )
    followed = 0
    for member, turns, own in zip(nesting.read, nesting.turns, given.members, strict=True):
        if turns and not own.turns:
            raise ClaimError("expected claims about turns of every member inside of several steps")
        followed += certify_primitive(own, member)
    return followed


def _slices(given: PrimitiveCertificate, primitive: Primitive) -> dict[str, tuple[Number, ...]]:
    """The number of slices of every digit that the maps name: of no more, and of no fewer."""
    slices = {dim: tuple(map(_number, texts)) for dim, texts in given.slices.items()}
    digits: dict[str, int] = {}
    for dim, index in (item for named in given.maps.values() for item in named.items()):
        digits[dim] = max(digits.get(dim, 0), len(index))
    digits.pop("t")
    if {dim: len(counts) for dim, counts in slices.items()} != digits or not all(
        names(count) <= set(primitive.side_names) for counts in slices.values() for count in counts
    ):
        raise ClaimError("slices: expected a number for every digit of this primitive, got others")
    return slices


def _number(text: str) -> Number:
    try:
        return parse(text)
    except ValueError as error:
        raise ClaimError(str(error)) from None
