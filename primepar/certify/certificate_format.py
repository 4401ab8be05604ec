"""What certificates of primitives and sequences are made of."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from primepar.certify.cases import Answer
from primepar.schedule.primitive import Primitive
from primepar.schedule.tracing import maps_of


class PrimitiveCertificate(Struct, frozen=True, forbid_unknown_fields=True, tag="primitive"):
    """What the proof of a primitive for all sides rests on. Expressions are texts."""

    format: Literal["primepar-certificate"]
    version: Literal[2]
    maps: dict[str, dict[str, tuple[str, ...]]]
    """Phase, or tensor that rests -> dim -> digits: what the certificate is about."""
    slices: dict[str, tuple[str, ...]]
    """Dim -> how many slices each of its digits has."""
    found: dict[str, dict[str, str]]
    """Claim -> an expression for each name that is to be found."""
    answers: dict[str, tuple[Answer, ...]]
    """Claim -> what to answer at each of its comparisons."""
    turns: bool = False
    """Whether it is nested in one of several steps."""


class SequenceCertificate(Struct, frozen=True, forbid_unknown_fields=True, tag="sequence"):
    """What the proof of a sequence for all lengths rests on: certificates of its members.

    Each member is read as the sequence reads it: with a resident layout if any member has one.
    """

    format: Literal["primepar-certificate"]
    version: Literal[2]
    members: tuple[PrimitiveCertificate, ...]


def map_texts(primitive: Primitive) -> dict[str, dict[str, tuple[str, ...]]]:
    """The maps as a certificate states them."""
    maps = maps_of(primitive)
    texts = {
        key: {dim: tuple(map(str, index)) for dim, index in slices.items()}
        for key, slices in (*maps.phases.items(), *maps.homes.items())
    }
    return {"steps": {"t": (str(maps.steps),)}, **texts}
