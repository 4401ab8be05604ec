"""All that the attack knows of certificates of primitives: writer, file and checker."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from primepar import Primitive
from primepar.certify import (
    PrimitiveCertificate,
    certify_primitive,
    load_certificate,
    save_certificate,
)
from primepar.certify.cases import Case
from primepar.certify.primitive import Meshes, claims
from primepar.errors import PrimeParError
from primepar.verify.certificate.answers import answers
from primepar.verify.certificate.primitive import primitive_certificate


def written(primitive: Primitive) -> bytes | None:
    """The certificate of a primitive as a file; None if it has none."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        try:
            save_certificate(primitive_certificate(primitive), path)
        except PrimeParError:
            return None
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
    """A certificate with its answers made for another primitive; None if a claim about it fails."""
    given = msgspec.json.decode(text, type=PrimitiveCertificate)
    found = {}
    try:
        for name, holds, of in claims(primitive):

            def decided(case: Case, holds: Any = holds, of: Any = of) -> bool:
                return bool(holds(Meshes(primitive, given, case), of))

            found[name] = answers(decided)
    except (PrimeParError, LookupError, ValueError, TypeError):
        return None
    return msgspec.json.encode(msgspec.structs.replace(given, answers=found))


def is_same(one: bytes, other: bytes) -> bool:
    """Whether two files are read as the same certificate."""
    first, second = (msgspec.json.decode(each, type=PrimitiveCertificate) for each in (one, other))
    return bool(first == second)
