"""The format of certificates of primitives and sequences."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from primepar.certify.cases import Answer
from primepar.schedule.primitive import Primitive
from primepar.schedule.tracing import maps_of


class PrimitiveCertificate(
    Struct, frozen=True, forbid_unknown_fields=True, tag="primitive",
    rename={"witnesses": "found", "repeats": "turns"},
):  # fmt: skip
    """Everything that the proof of a primitive for all sides needs. Expressions are texts."""

    format: Literal["primepar-certificate"]
    version: Literal[3]
    maps: dict[str, dict[str, tuple[str, ...]]]
    """Phase, or tensor with a resident layout -> dim -> digits: the primitive that is proved."""
    slices: dict[str, tuple[str, ...]]
    """Dim -> the number of slices of each of its digits."""
    witnesses: dict[str, dict[str, str]]
    """Claim -> an expression for each of its witnesses; the key `found` in the file."""
    answers: dict[str, tuple[Answer, ...]]
    """Claim -> the answer to each of its comparisons, in order."""
    repeats: bool = False
    """Whether an outer member of several steps repeats its steps; `turns` in the file."""


class SequenceCertificate(Struct, frozen=True, forbid_unknown_fields=True, tag="sequence"):
    """Everything that the proof of a sequence for all lengths needs: certificates of its members.

    Each member is read as the sequence reads it: with a resident layout if any member has one.
    """

    format: Literal["primepar-certificate"]
    version: Literal[3]
    members: tuple[PrimitiveCertificate, ...]


def map_texts(primitive: Primitive) -> dict[str, dict[str, tuple[str, ...]]]:
    """The maps as a certificate states them."""
    maps = maps_of(primitive)
    texts = {
        key: {dim: tuple(map(str, index)) for dim, index in slices.items()}
        for key, slices in (*maps.phases.items(), *maps.homes.items())
    }
    return {"steps": {"t": (str(maps.steps),)}, **texts}
