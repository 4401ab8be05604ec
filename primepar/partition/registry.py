"""The library by name: primitives, methods, and the text form of sequences, `K2,P2x2`."""

from __future__ import annotations

import re

from primepar.errors import MethodError, SequenceError
from primepar.partition.by_dimension import ByBatch, ByInput, ByOutput, BySequence, Replicated
from primepar.partition.flux import FluxGather, FluxScatter
from primepar.partition.grid import (
    GridKeepsInput,
    GridKeepsWeight,
    GridKept,
    GridRegathered,
)
from primepar.partition.local_sgd import LocalSGD
from primepar.partition.patrickstar import PatrickStar
from primepar.partition.pipeline.gpipe import GPipe
from primepar.partition.pipeline.interleaved import InterleavedOneForwardOneBackward
from primepar.partition.pipeline.one_forward_one_backward import OneForwardOneBackward
from primepar.partition.pipeline.zero_bubble_h1 import ZeroBubbleH1
from primepar.partition.pipeline.zero_bubble_v import ZeroBubbleV
from primepar.partition.primepar import PrimePar
from primepar.partition.primitive_file import load_with_lengths, names_file
from primepar.partition.ring_attention import RingAttention
from primepar.partition.sequence_parallel import SequenceColumn, SequenceRow
from primepar.partition.stationary import (
    InputStays,
    InputStaysBothWays,
    OutputStays,
    OutputStaysBothWays,
    WeightStays,
    WeightStaysBothWays,
)
from primepar.partition.stream_k import StreamK
from primepar.partition.summa import Summa, SummaDeep, SummaDeepKept, SummaRectangular
from primepar.partition.tesseract import Tesseract
from primepar.partition.three_d import ThreeD, ThreeDExchanged, ThreeDRegathered
from primepar.partition.ulysses import Ulysses
from primepar.schedule.primitive import Primitive
from primepar.schedule.program_method import ProgramMethod
from primepar.schedule.sequence import Element, Sequence

PRIMITIVES: dict[str, type[Primitive]] = {
    "by-batch": ByBatch,
    "by-sequence": BySequence,
    "by-input": ByInput,
    "by-output": ByOutput,
    "sequence-column": SequenceColumn,
    "sequence-row": SequenceRow,
    "summa": Summa,
    "summa-rectangular": SummaRectangular,
    "summa-deep": SummaDeep,
    "summa-deep-kept": SummaDeepKept,
    "tesseract": Tesseract,
    "three-d": ThreeD,
    "three-d-exchanged": ThreeDExchanged,
    "three-d-regathered": ThreeDRegathered,
    "grid-kept": GridKept,
    "grid-keeps-input": GridKeepsInput,
    "grid-keeps-weight": GridKeepsWeight,
    "grid-regathered": GridRegathered,
    "primepar": PrimePar,
    "output-stays": OutputStays,
    "input-stays": InputStays,
    "weight-stays": WeightStays,
    "output-stays-both-ways": OutputStaysBothWays,
    "input-stays-both-ways": InputStaysBothWays,
    "weight-stays-both-ways": WeightStaysBothWays,
}

METHODS: dict[str, type[ProgramMethod]] = {
    "gpipe": GPipe,
    "1f1b": OneForwardOneBackward,
    "interleaved-1f1b": InterleavedOneForwardOneBackward,
    "zb-h1": ZeroBubbleH1,
    "zbv": ZeroBubbleV,
    "flux-gather": FluxGather,
    "flux-scatter": FluxScatter,
    "stream-k": StreamK,
    "local-sgd": LocalSGD,
    "patrickstar": PatrickStar,
    "ring-attention": RingAttention,
    "ulysses": Ulysses,
}
"""Methods that are no map of slices, by name."""

_TOKEN = re.compile(r"([A-Za-z]+)(\d+(?:x\d+)*)?")


def parse_sequence(text: str, *, linear: bool = True) -> Sequence:
    """Read a partition sequence as the paper writes it, outermost primitive first.

    `B`, `M`, `N`, `K` split that dim in two, `K4` in four; `P2x2` is PrimePar's primitive on a
    2 x 2 mesh; `R4` replicates, and is for an operator that is not `linear`. Of primitives with
    one label the first that the lengths fit is taken. `mine.py:Mine2x2` is a primitive of a file,
    which is run. The empty text is the sequence of one device. Raises `SequenceError`, and for a
    file `TargetError` or `PrimitiveError`.

    Examples:
        >>> str(parse_sequence("K,P2x2"))
        'K2,P2x2'
    """
    tokens = [token.strip() for token in text.split(",")] if text.strip() else []
    return Sequence(tuple(_element(token, text, linear) for token in tokens))


def parse_method(text: str) -> ProgramMethod | None:
    """Read a method with sizes, `gpipe:stages=4,micro_batches=8`; None for another name.

    Raises `MethodError` for sizes that the method does not have, or that do not fit together.
    """
    name, _, listed = text.partition(":")
    if name not in METHODS:
        return None
    sizes: dict[str, str] = {}
    for pair in filter(None, listed.split(",")):
        size, equals, value = pair.partition("=")
        if not equals or size.strip() in sizes:
            example = METHODS[name]().text
            raise MethodError(
                f"{text}: expected size=value, each size once, got {pair!r}: write {example}"
            )
        sizes[size.strip()] = value.strip()
    return METHODS[name].of(sizes)


def labelled(label: str) -> Primitive | None:
    """The primitive of a name, or the first with that label in sequences; None if there is none."""
    if label in PRIMITIVES:
        return PRIMITIVES[label]()
    return next((kind() for kind in PRIMITIVES.values() if kind.label == label), None)


def _element(token: str, text: str, linear: bool) -> Element:
    if names_file(token):
        return _element_of_file(token, text)
    match = _TOKEN.fullmatch(token)
    known = _labelled(match[1]) if match else []
    if not match or not known or (linear and Replicated in known):
        replicated = " (R is for operators that are not linear, in a plan)"
        raise SequenceError(
            f"sequence {text!r}: expected primitives like {_examples()}, got {token!r}"
            f"{replicated if Replicated in known else _respelt(token, text)}"
        )
    for primitive in (kind() for kind in known):
        sides = _sides(primitive, match[2] or "")
        if sides is not None:
            return Element(primitive, sides)
    raise _misspelt(primitive, match[2] or "", token, text)


def _element_of_file(token: str, text: str) -> Element:
    """The element of a primitive in a user's own file, `mine.py:Mine2x2`."""
    primitive, lengths = load_with_lengths(token)
    sides = _sides(primitive, lengths)
    if sides is None:
        raise _misspelt(primitive, lengths, token, text)
    return Element(primitive, sides)


def _sides(primitive: Primitive, lengths: str) -> tuple[int, ...] | None:
    """Lengths of the sides as spelt; by default 2 along a single axis."""
    two = "2" if len(primitive.axis_sides) == 1 else ""
    return primitive.sides_of(tuple(map(int, re.findall(r"\d+", lengths or two))))


def _misspelt(primitive: Primitive, lengths: str, token: str, text: str) -> SequenceError:
    return SequenceError(
        f"sequence {text!r}: expected {_lengths(primitive)}, got {token!r}"
        f"{_repeated(primitive, lengths)}"
    )


def _repeated(primitive: Primitive, spelt: str) -> str:
    """`: write P3x3` for P3, the one length along every axis."""
    if not spelt or "x" in spelt:
        return ""
    lengths = (int(spelt),) * _count(primitive)
    fits = primitive.sides_of(lengths) is not None
    return f": write {primitive.label}{'x'.join(map(str, lengths))}" if fits else ""


def _respelt(token: str, text: str) -> str:
    """`: write P2x2` for p2X2, and `: write K2,P2x2` for K2;P2x2, if that is what was meant."""
    pairs = re.findall(r"([A-Za-z]+?)(\d+(?:x\d+)*)?(?![\dA-Za-z])", token.replace("X", "x"))
    labels = {kind.label.lower(): kind.label for kind in PRIMITIVES.values()}
    words = [f"{labels.get(label.lower())}{lengths}" for label, lengths in pairs]
    known = bool(words) and all(label.lower() in labels for label, _ in pairs)
    plain = re.sub(r"[^A-Za-z0-9]", "", token).lower() == "".join(words).lower()
    return f": write {text.replace(token, ','.join(words))}" if known and plain else ""


def _labelled(label: str) -> list[type[Primitive]]:
    kinds: list[type[Primitive]] = [*PRIMITIVES.values(), Replicated]
    return [kind for kind in kinds if kind.label == label]


def _count(primitive: Primitive) -> int:
    """How many lengths it is spelt with; the name of a file may have an x too."""
    return primitive.example.removeprefix(primitive.label).count("x") + 1


def _lengths(primitive: Primitive) -> str:
    """What a primitive is spelt with, `2 lengths after P, equal along r and c, like P2x2`."""
    axes, count = primitive.axis_sides, _count(primitive)
    shared = [axis for axis, side in axes.items() if list(axes.values()).count(side) > 1]
    equal = f", equal along {', '.join(shared[:-1])} and {shared[-1]}" if shared else ""
    return (
        f"{count} length{'s' * (count > 1)} after {primitive.label}"
        f"{equal * (count == len(axes))}, like {primitive.example}"
    )


def _examples() -> str:
    return ", ".join(
        known().example.removesuffix("2") if len(known().axis_sides) == 1 else known().example
        for known in PRIMITIVES.values()
    )
