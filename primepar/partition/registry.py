"""The library of primitives by name, and the text form of sequences, `K2,P2x2`."""

from __future__ import annotations

import re

from primepar.errors import SequenceError
from primepar.partition.by_dimension import ByBatch, ByInput, ByOutput, BySequence, Replicated
from primepar.partition.primepar import PrimePar
from primepar.partition.sequence_parallel import SequenceColumn, SequenceRow
from primepar.partition.stationary import InputStays, OutputStays, WeightStays
from primepar.partition.summa import Summa
from primepar.partition.tesseract import Tesseract
from primepar.partition.three_d import ThreeD, ThreeDExchanged, ThreeDRegathered
from primepar.schedule.primitive import Primitive
from primepar.schedule.sequence import Element, Sequence

PRIMITIVES: dict[str, type[Primitive]] = {
    "by-batch": ByBatch,
    "by-sequence": BySequence,
    "by-input": ByInput,
    "by-output": ByOutput,
    "sequence-column": SequenceColumn,
    "sequence-row": SequenceRow,
    "summa": Summa,
    "tesseract": Tesseract,
    "three-d": ThreeD,
    "three-d-exchanged": ThreeDExchanged,
    "three-d-regathered": ThreeDRegathered,
    "primepar": PrimePar,
    "output-stays": OutputStays,
    "input-stays": InputStays,
    "weight-stays": WeightStays,
}

_BY_LABEL = {known.label: known for known in PRIMITIVES.values()} | {Replicated.label: Replicated}
_TOKEN = re.compile(r"([A-Za-z]+)(\d+(?:x\d+)*)?")


def parse_sequence(text: str, *, linear: bool = True) -> Sequence:
    """Read a partition sequence as the paper writes it, outermost primitive first.

    `B`, `M`, `N`, `K` split that dim in two, `K4` in four; `P2x2` is PrimePar's primitive on a
    2 x 2 mesh; `R4` replicates, and is for an operator that is not `linear`. The empty text is
    the sequence of one device. Raises `SequenceError`.

    Examples:
        >>> str(parse_sequence("K,P2x2"))
        'K2,P2x2'
    """
    tokens = [token.strip() for token in text.split(",")] if text.strip() else []
    return Sequence(tuple(_element(token, text, linear) for token in tokens))


def _element(token: str, text: str, linear: bool) -> Element:
    match = _TOKEN.fullmatch(token)
    known = match and _BY_LABEL.get(match[1])
    if not match or known is None or (linear and known is Replicated):
        replicated = " (R is for operators that are not linear, in a plan)"
        raise SequenceError(
            f"sequence {text!r}: expected primitives like {_examples()}, got {token!r}"
            f"{replicated if known is Replicated else ''}"
        )
    primitive = known()
    lengths = [int(length) for length in (match[2] or "2").split("x")]
    sides = _sides(primitive, lengths if match[2] or len(primitive.axis_sides) == 1 else [])
    if sides is None:
        count = len(primitive.axis_sides)
        raise SequenceError(
            f"sequence {text!r}: expected {count} length{'s' * (count > 1)} after {known.label}"
            f"{_equal(primitive)}, like {_example(primitive)}, got {token!r}"
        )
    return Element(primitive, sides)


def _sides(primitive: Primitive, lengths: list[int]) -> tuple[int, ...] | None:
    """Length of each side from the length along each axis; None if they do not agree."""
    sides: dict[str, int] = {}
    if len(lengths) != len(primitive.axis_sides):
        return None
    for side, length in zip(primitive.axis_sides.values(), lengths, strict=True):
        if sides.setdefault(side, length) != length:
            return None
    return tuple(sides.values())


def _equal(primitive: Primitive) -> str:
    """Which of the lengths must be equal, `, equal along r and c`."""
    axes = primitive.axis_sides
    shared = [axis for axis, side in axes.items() if list(axes.values()).count(side) > 1]
    return f", equal along {', '.join(shared[:-1])} and {shared[-1]}" if shared else ""


def _example(primitive: Primitive) -> str:
    return primitive.text((2,) * len(primitive.side_names))


def _examples() -> str:
    return ", ".join(
        _example(known()).removesuffix("2") if len(known().axis_sides) == 1 else _example(known())
        for known in PRIMITIVES.values()
    )
