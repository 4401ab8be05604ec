"""All that the attack knows of certificates of primitives: writer, file and checker."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from primepar import Primitive
from primepar.certify import (
    PrimitiveCertificate,
    certify_primitive,
    load_certificate,
    save_certificate,
)
from primepar.certify.cases import Answer
from primepar.certify.certificate_format import map_texts
from primepar.certify.claims import Claim, Subject, claims
from primepar.certify.primitive import holds
from primepar.errors import PrimeParError
from primepar.schedule.deadline import UnansweredError, deadline
from primepar.schedule.expression import Number, parse
from primepar.verify.certificate.answers import answers
from primepar.verify.primitive.proof import prove

SECONDS = 5.0
"""Limit of each proof; of a wrong primitive most time would go into a certificate there is not."""


def written(primitive: Primitive) -> bytes | None:
    """The certificate of a primitive as a file; None if it has none."""
    try:
        with deadline(SECONDS):
            made = prove(primitive).certificate
    except (PrimeParError, UnansweredError):
        return None
    if made is None:
        return None
    with TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        save_certificate(made, path)
        return path.read_bytes()


def offered(text: bytes, primitive: Primitive) -> str:
    """What the checker makes of a file that is offered for a primitive."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        path.write_bytes(text)
        try:
            given = load_certificate(path)
            if not isinstance(given, PrimitiveCertificate):
                return "refused"  # as the command does
            certify_primitive(given, primitive)
        except PrimeParError:
            return "refused"
        except Exception as error:
            return f"crashed: {type(error).__name__}: {error}"
    return "accepted"


def forged(text: bytes, primitive: Primitive) -> bytes | None:
    """A certificate made over to another primitive, with new answers; None if a claim fails.

    The numbers of slices and the expressions of witnesses stay.
    """
    given = msgspec.json.decode(text, type=PrimitiveCertificate)
    try:
        slices = {dim: tuple(map(_parsed, counts)) for dim, counts in given.slices.items()}
        made = {
            claim.name: _answered(claim, given.witnesses.get(claim.name, {}))
            for claim in claims(Subject(primitive, slices, given.repeats))
        }
    except (PrimeParError, LookupError):
        return None
    over = msgspec.structs.replace(given, maps=map_texts(primitive), answers=made)
    return msgspec.json.encode(over)


def _answered(claim: Claim, witnesses: dict[str, str]) -> tuple[Answer, ...]:
    nodes = {name: _parsed(text) for name, text in witnesses.items()}
    return answers(lambda case: holds(claim, nodes, case))


def _parsed(text: str) -> Number:
    return parse(text)


def is_same(one: bytes, other: bytes) -> bool:
    """Whether two files are read as the same certificate."""
    first, second = (msgspec.json.decode(text, type=PrimitiveCertificate) for text in (one, other))
    return bool(first == second)
