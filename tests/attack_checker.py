"""All that the attack knows of certificates of primitives: writer, file and checker."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import msgspec

from primepar import Primitive
from primepar.certify import (
    PrimitiveCertificate,
    certify_primitive,
    load_certificate,
    save_certificate,
)
from primepar.certify.claims import Subject, claims
from primepar.certify.primitive import holds, map_texts
from primepar.errors import PrimeParError
from primepar.schedule.expression import parse
from primepar.verify.certificate.answers import answers
from primepar.verify.primitive.proof import prove

SECONDS = 30.0
"""Time to write a certificate."""


def written(primitive: Primitive) -> bytes | None:
    """The certificate of a primitive as a file; None if it has none."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "certificate.json"
        try:
            made = prove(primitive, perf_counter() + SECONDS).certificate
        except PrimeParError:
            return None
        if made is None:
            return None
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
    """A certificate with its answers made for another primitive; None if a claim about it fails."""
    given = msgspec.json.decode(text, type=PrimitiveCertificate)
    found = {}
    try:
        slices = {dim: tuple(map(parse, own)) for dim, own in given.slices.items()}
        for claim in claims(Subject(primitive, slices, given.turns)):
            own = {name: parse(node) for name, node in given.found.get(claim.name, {}).items()}
            found[claim.name] = answers(partial(holds, claim, own))
        maps = map_texts(primitive)
    except (PrimeParError, LookupError, ValueError, TypeError):
        return None
    return msgspec.json.encode(msgspec.structs.replace(given, answers=found, maps=maps))


def is_same(one: bytes, other: bytes) -> bool:
    """Whether two files are read as the same certificate."""
    first, second = (msgspec.json.decode(each, type=PrimitiveCertificate) for each in (one, other))
    return bool(first == second)
