"""Checks the certificate of a primitive, for all lengths of the sides of its mesh.

A certificate has the number of slices of every digit, an expression for each witness of a claim,
and for each claim the answers to its comparisons. The claims are not in it: they are derived again
from the primitive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from primepar.certify.cases import Answer, Case, cases
from primepar.certify.certificate_format import PrimitiveCertificate, SequenceCertificate, map_texts
from primepar.certify.claims import Claim, Subject, claims
from primepar.errors import CertificateError, ClaimError
from primepar.schedule.expression import Number, names, parse
from primepar.schedule.polynomial_form import Form
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Nesting


def certify_primitive(given: PrimitiveCertificate, primitive: Primitive) -> int:
    """Check a certificate and return the number of its cases.

    Raises `CertificateError` if it is about another primitive, `ClaimError` for a claim that does
    not hold.
    """
    if given.maps != map_texts(primitive):
        raise CertificateError(
            f"expected a certificate of {type(primitive).__name__}, got one of another primitive: "
            "its maps are not the same"
        )
    subject = Subject(primitive, _slices(given, primitive), given.repeats)
    required = {claim.name: claim for claim in claims(subject)}
    existential = {name for name, claim in required.items() if claim.witnesses}
    # All claims and no others: a certificate that leaves one out proves something weaker.
    if given.answers.keys() != required.keys() or given.witnesses.keys() != existential:
        raise ClaimError("answers: expected those of every claim about this primitive, got others")
    return sum(
        certify_claim(claim, given.witnesses.get(name, {}), given.answers[name])
        for name, claim in required.items()
    )


def certify_claim(claim: Claim, witnesses: Mapping[str, str], answers: Sequence[Answer]) -> int:
    """Follow all cases of one claim and return their number. Raises `ClaimError` if one fails."""
    followed = 0
    if witnesses.keys() != {name for name, _ in claim.witnesses}:
        raise ClaimError(f"{claim.name}: expected an expression for each witness, got others")
    try:
        nodes = {name: _number(text) for name, text in witnesses.items()}
        for case in cases(answers):
            followed += 1
            if not holds(claim, nodes, case):
                raise ClaimError("expected it to hold in every case, got one where it does not")
    except KeyError as error:
        raise ClaimError(f"{claim.name}: expected names of this primitive, got {error}") from None
    except ClaimError as error:
        raise ClaimError(f"{claim.name}: {error}") from None
    return followed


def holds(claim: Claim, witnesses: Mapping[str, Number], case: Case) -> bool:
    """Whether a claim holds in a case, with these expressions for its witnesses."""
    names: dict[str, Form] = {}
    for name, limit in claim.given:
        below = None if limit is None else case.value(limit, names)
        names[name] = case.variable(name, 1 if limit is None else 0, below)
    # A phase of one step has no next one: in this case there is nothing to claim.
    if case.holds(claim.empty_if, names):
        return True
    values = {name: case.value(witnesses[name], names) for name, _ in claim.witnesses}
    for name, limit in claim.witnesses:
        # A witness has to be on the mesh: device (r+1, c) does not exist for the last r, (r+1)%s
        # does.
        room = case.value(limit, names).plus(values[name], -1).plus(Form.of(-1))
        if not (case.decide(values[name]) and case.decide(room)):
            return False
    return case.holds(claim.body, {**names, **values})


def certify_sequence(given: SequenceCertificate, nesting: Nesting) -> int:
    """Check the certificate of a sequence and return the number of its cases.

    A member inside of one with several steps starts again at each of them; what it then needs is
    an additional claim (`repeats`). Raises as `certify_primitive` does.
    """
    if len(given.members) != len(nesting.members):
        raise CertificateError(
            f"expected a certificate of {len(nesting.members)} members, got {len(given.members)}"
        )
    followed = 0
    for member, repeats, part in zip(nesting.read, nesting.turns, given.members, strict=True):
        # K2,P: P is repeated for each step of K if K has several, so that what its first step needs
        # must be somewhere after its last one.
        if repeats and not part.repeats:
            expected = (
                "expected claims about repeated steps of every member inside of several steps"
            )
            raise ClaimError(expected)
        followed += certify_primitive(part, member)
    return followed


def _slices(given: PrimitiveCertificate, primitive: Primitive) -> dict[str, tuple[Number, ...]]:
    """The number of slices of exactly the digits that the maps name. Raises `ClaimError`."""
    slices = {dim: tuple(map(_number, texts)) for dim, texts in given.slices.items()}
    digits: dict[str, int] = {}
    for dim, index in (item for slices_of in given.maps.values() for item in slices_of.items()):
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
