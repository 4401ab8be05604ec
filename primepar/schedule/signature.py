"""What a program may define about its names: signatures of phases, cuts of tensors, bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Annotated, Literal

from msgspec import Meta, Struct

from primepar.reading import HIDDEN
from primepar.schedule.operators import Index, block_name

LONGEST_NAME = 1000
LARGEST = 2**63 - 1
Name = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=LONGEST_NAME,
        # Python's $ matches before a newline at the end, too.
        pattern=f"^[^{HIDDEN}]*$(?!\\n)",
    ),
]
"""Fits on one line and shows all of itself: without control characters and breaks of lines."""
Natural = Annotated[int, Meta(ge=0, le=LARGEST)]
Reduction = Literal["sum", "max", "min"]
Scale = int | Fraction
"""An exact coefficient; an int where it is whole."""
_COEFFICIENT = r"[1-9]\d{0,17}(/[1-9]\d{0,17})?"
Coefficient = Annotated[str, Meta(extra_json_schema={"pattern": f"^{_COEFFICIENT}$"})]
"""A positive rational number in lowest terms, `"3"` or `"1/64"`; `coefficient` reads it."""

_TEMPLATE = re.compile(r"(.+?)\[([^\[\]]+)\]")
_ENTRY = re.compile(r"([A-Za-z]+)(?:/([1-9]\d*))?|(\d+)")


@dataclass(frozen=True)
class Template:
    """A block name whose indices are dims, `I[M,N/2,0]`."""

    tensor: str
    entries: tuple[tuple[str, int], ...]
    """(dim, divisor), or ("", slice) for a fixed slice."""

    @classmethod
    def parse(cls, text: str) -> Template:
        """Parse a template. Raises `ValueError` with what is expected."""
        match = _TEMPLATE.fullmatch(text)
        entries = [_ENTRY.fullmatch(part) for part in match[2].split(",")] if match else []
        parsed = tuple(
            ("", int(entry[3])) if entry[3] else (entry[1], int(entry[2] or 1))
            for entry in entries
            if entry is not None
        )
        if match is None or len(parsed) != len(entries):
            raise ValueError(f"expected a block name over dims, such as 'I[M,N]', got {text!r}")
        return cls(match[1], parsed)

    @property
    def dims(self) -> frozenset[str]:
        """Dims that the name depends on."""
        return frozenset(dim for dim, _ in self.entries if dim)

    def index(self, sub_operator: Mapping[str, int]) -> Index:
        """Which block it is for one sub-operator."""
        return tuple(sub_operator[dim] // number if dim else number for dim, number in self.entries)

    def block(self, sub_operator: Mapping[str, int]) -> str:
        """Name of the block."""
        if self._pattern is not None:
            return self._pattern.format_map(sub_operator)
        return block_name(self.tensor, self.index(sub_operator))

    @cached_property
    def _pattern(self) -> str | None:
        """The name with its dims in braces, which is filled in fast; None where it divides."""
        if any(dim and number != 1 for dim, number in self.entries):
            return None
        indices = ",".join(f"{{{dim}}}" if dim else str(number) for dim, number in self.entries)
        return f"{self.tensor.replace('{', '{{').replace('}', '}}')}[{indices}]"


@lru_cache(maxsize=4096)
def coefficient(text: str) -> Scale:
    """The number of a coefficient. Raises `ValueError` with what to write instead."""
    if re.fullmatch(_COEFFICIENT, text, re.ASCII) is None:
        raise ValueError(
            "expected a scale that is a positive number or fraction of at most 18 digits each, "
            f"such as '1/64', got {text!r}"
        )
    number = Fraction(text)
    if str(number) != text:
        raise ValueError(f"expected a scale in lowest terms, got {text!r}: write {str(number)!r}")
    return number.numerator if number.denominator == 1 else number


def check_scale(text: str, reduction: Reduction) -> None:
    """Raise `ValueError` unless a scale is a coefficient; of a maximum or minimum it is 1."""
    if text != "1" and coefficient(text) and reduction != "sum":
        raise ValueError(
            f"expected no scale with reduction {reduction}, got {text}: scale what is computed "
            "from the result"
        )


def check_again(
    phase: str, sub_operator: Mapping[str, int], again: bool, done: set[object]
) -> None:
    """Raise `ValueError` for a product that is computed again and is not among those `done`.

    These are the products of its rank before it; this one is added to them.
    """
    product = phase, frozenset(sub_operator.items())
    if again and product not in done:
        cell = ", ".join(f"{dim}={index}" for dim, index in sub_operator.items())
        raise ValueError(
            f"expected {phase} sub-operator ({cell}) to be computed before it is computed again, "
            "got it never before: leave again out"
        )
    done.add(product)


def multiplies(kernel: str | None) -> bool:
    """Whether a kernel is a product of two blocks of a linear operator."""
    return kernel is not None and kernel.startswith("linear.")


class Signature(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, dict=True):
    """What a sub-operator of a phase reads and what it adds to.

    Block names whose indices are dims of the phase's grid, `I[M,N]`; `M/2` is half of a slice
    index, rounded down, and a number is that slice. Dims that `writes` leaves out are reduced
    over; those that no name has count copies of the same sub-operator. `kernel` names the function
    of blocks that computes it, `norm.square`: its last words are those of the phase. The finished
    tensor is `scale` times the sum of what its sub-operators compute.
    """

    reads: tuple[Name, ...]
    writes: Name
    reduction: Reduction = "sum"
    kernel: Name | None = None
    scale: Coefficient = "1"

    def __post_init__(self) -> None:
        assert self.templates  # parses, and so raises what is wrong
        check_scale(self.scale, self.reduction)

    @property
    def scale_value(self) -> Scale:
        """The coefficient of the finished sum."""
        return coefficient(self.scale)

    @cached_property
    def templates(self) -> tuple[Template, ...]:
        """What it reads, then what it writes."""
        return tuple(Template.parse(text) for text in (*self.reads, self.writes))

    @cached_property
    def dims(self) -> frozenset[str]:
        """Dims that distinguish sub-operators."""
        return frozenset().union(*(template.dims for template in self.templates))

    def check(self, phase: str, slices: Mapping[str, int]) -> None:
        """Raise `ValueError` unless a grid has all dims, in multiples of their divisors."""
        for dim, divisor in (entry for template in self.templates for entry in template.entries):
            if dim and dim not in slices:
                raise ValueError(
                    f"expected {dim} among the dims of grid.{phase}, got {', '.join(slices)}"
                )
            if dim and slices[dim] % divisor:
                raise ValueError(
                    f"expected {dim} in a multiple of {divisor} slices in grid.{phase}, "
                    f"got {slices[dim]}"
                )


class Tensor(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The offsets of the blocks of a tensor: `cuts[dim][i]` is the first element of slice `i`.

    The last entry of each dim is the tensor's size. `of` names the tensor that this is, cut in
    another way. A `wide` tensor, of sums and statistics, is held in float32 where the model is in
    half precision.
    """

    cuts: tuple[tuple[Natural, ...], ...]
    of: Name | None = None
    wide: bool = False

    def __post_init__(self) -> None:
        for dim, cuts in enumerate(self.cuts):
            rising = all(a < b for a, b in pairwise(cuts))
            if len(cuts) < 2 or cuts[0] != 0 or not rising:
                raise ValueError(
                    f"expected cuts that rise from 0 to the size of dim {dim}, got {list(cuts)}"
                )

    @property
    def size(self) -> tuple[int, ...]:
        """Elements along each dim."""
        return tuple(cuts[-1] for cuts in self.cuts)


def reduction_into(
    block: str,
    phase: str | None,
    phases: Mapping[str, Signature] | None,
    tensors: Mapping[str, Tensor] | None,
) -> Reduction:
    """The reduction by which a phase adds to a block; without one, that of the block's tensor."""

    def real(tensor: str) -> str:
        known = (tensors or {}).get(tensor)
        return tensor if known is None else known.of or tensor

    for name, signature in (phases or {}).items():
        written, into = signature.templates[-1].tensor, block.rpartition("[")[0]
        if name == phase or (phase is None and real(written) == real(into)):
            return signature.reduction
    return "sum"


class Bound(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Elements that may be live at once on each rank, in device and in host memory."""

    device: Natural | None = None
    host: Natural | None = None
