"""The library of primitives by name, and the text form of sequences, `K2,P2x2`."""

from __future__ import annotations

import re

from primepar.errors import SequenceError
from primepar.partition.by_dimension import ByBatch, ByInput, ByOutput, BySequence
from primepar.partition.primepar import PrimePar
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Element, Sequence

PRIMITIVES: dict[str, type[Primitive]] = {
    "by-batch": ByBatch,
    "by-sequence": BySequence,
    "by-input": ByInput,
    "by-output": ByOutput,
    "primepar": PrimePar,
}

_BY_LABEL = {primitive.label: primitive for primitive in PRIMITIVES.values()}
_TOKEN = re.compile(r"([A-Za-z]+)(\d+(?:x\d+)*)?")


def parse_sequence(text: str) -> Sequence:
    """Read a partition sequence as the paper writes it, outermost primitive first.

    `B`, `M`, `N`, `K` split that dim in two, `K4` in four; `P2x2` is PrimePar's primitive on a
    2 x 2 mesh. The empty text is the sequence of one device. Raises `SequenceError`.

    Examples:
        >>> str(parse_sequence("K,P2x2"))
        'K2,P2x2'
    """
    tokens = [token.strip() for token in text.split(",")] if text.strip() else []
    return Sequence(tuple(_element(token, text) for token in tokens))


def _element(token: str, text: str) -> Element:
    match = _TOKEN.fullmatch(token)
    known = match and _BY_LABEL.get(match[1])
    if not match or known is None:
        raise SequenceError(
            f"sequence {text!r}: expected primitives like {_examples()}, got {token!r}"
        )
    lengths = [int(length) for length in (match[2] or "2").split("x")]
    axes = len(known().axis_sides)
    if (match[2] is None and axes > 1) or len(lengths) != axes or len(set(lengths)) > 1:
        pattern = known.label + "x".join("2" * axes)
        raise SequenceError(
            f"sequence {text!r}: expected {axes} equal length{'s' * (axes > 1)} after "
            f"{known.label}, like {pattern}, got {token!r}"
        )
    return Element(known(), (lengths[0],))


def _examples() -> str:
    return ", ".join(
        label + ("" if len(primitive().axis_sides) == 1 else "2x2")
        for label, primitive in _BY_LABEL.items()
    )
