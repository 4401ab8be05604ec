"""What the names in a program mean: which blocks a sub-operator takes, and where a block is.

The phases of a linear operator have fixed signatures (`PRODUCTS`); a program gives those of its
other phases. A block is a box of its tensor: of elements where `tensors` gives its cuts, else of
slices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

from primepar.errors import ProgramError, UnknownSizeError
from primepar.schedule.operators import (
    DIMS,
    PHASES,
    PRODUCTS,
    Index,
    block_name,
    parse_block,
    tensor_dims,
)
from primepar.schedule.program import Compute, Program
from primepar.schedule.sharing import shared
from primepar.schedule.signature import Reduction, Scale, Template, Tensor

Box = tuple[tuple[int, int], ...]
"""The place of a block: first element and end along each dim."""
Key = tuple[int, ...]
"""Which part of an output block a sub-operator makes: the slices that are reduced over."""

_NAME = re.compile(r"(.+?)\[((?:\d+(?:,\d+)*)?)\]")


class Place(NamedTuple):
    """The place of a block: a box of a tensor."""

    tensor: str
    box: Box


@dataclass(frozen=True)
class Phase:
    """A phase of a program: what its sub-operators read, and what they add to."""

    name: str
    reads: tuple[Template, ...]
    writes: Template
    reduction: Reduction
    grid: Mapping[str, int] | None
    """Dim -> slices; None where the program does not define it."""
    kernel: str | None = None
    """Which function computes it; None where the program does not define it."""
    scale: Scale = 1
    """The coefficient of each product in the finished output."""

    @classmethod
    def linear(cls, name: str, dims: frozenset[str], grid: Mapping[str, int] | None) -> Phase:
        """A phase of a linear operator over some of its dims."""
        reads, writes = PRODUCTS[name]
        *read, written = (
            Template(tensor, tuple((dim, 1) for dim in tensor_dims(tensor) if dim in dims))
            for tensor in (*reads, writes)
        )
        return cls(name, tuple(read), written, "sum", grid, f"linear.{name}")

    @cached_property
    def dims(self) -> frozenset[str]:
        """Dims that distinguish sub-operators; any other dim of the grid counts copies."""
        return self.writes.dims.union(*(template.dims for template in self.reads))

    @cached_property
    def _open(self) -> tuple[tuple[str, int], ...]:
        """(dim, modulus) of what the index of an output block leaves open; 0 is the whole dim."""
        written = dict(self.writes.entries)
        dims = sorted(self.dims)
        # O[M,K] of a product over M, N, K leaves N open: its parts are the slices of N. Of y[M/2]
        # both M=0 and M=1 are in y[0], and the key is M mod 2.
        return tuple((dim, written.get(dim, 0)) for dim in dims if written.get(dim) != 1)

    def key(self, sub_operator: Mapping[str, int]) -> Key:
        """Which of the parts that its output block is made of a sub-operator makes."""
        return tuple(
            [sub_operator[dim] % modulus if modulus else sub_operator[dim]
             for dim, modulus in self._open]
        )  # fmt: skip

    @cached_property
    def keys(self) -> tuple[Key, ...] | None:
        """All parts that an output block is made of; None where the program has no grid for it."""
        if self.grid is None:
            return None
        lengths = [modulus or self.grid[dim] for dim, modulus in self._open]
        return tuple(product(*map(range, lengths)))

    def sub_operator(self, index: Index, key: Key) -> dict[str, int]:
        """The sub-operator that makes one part of one output block."""
        slices: dict[str, int] = {}
        for (dim, divisor), part in zip(self.writes.entries, index, strict=True):
            if dim:
                slices[dim] = part * divisor
        for (dim, _), part in zip(self._open, key, strict=True):
            slices[dim] = slices.get(dim, 0) + part
        order = list(self.grid or (*DIMS, *sorted(self.dims)))
        return {dim: slices[dim] for dim in sorted(slices, key=order.index)}


@dataclass(frozen=True)
class Meaning:
    """What the names of one program mean."""

    program: Program
    _places: dict[str, Place | None] = field(default_factory=dict)
    _elements: dict[str, int | None] = field(default_factory=dict)

    @cached_property
    def phases(self) -> dict[str, Phase]:
        """Every phase that the program has a signature, a grid or a product for."""
        grid = self.program.grid or {}
        phases = {}
        for name in PHASES:
            dims = self._linear_dims(name)
            if dims is not None:
                phases[name] = Phase.linear(name, dims, grid.get(name))
        for name, signature in (self.program.phases or {}).items():
            *reads, writes = signature.templates
            phases[name] = Phase(
                name, tuple(reads), writes, signature.reduction, grid.get(name), signature.kernel,
                signature.scale_value,
            )  # fmt: skip
        return phases

    def _linear_dims(self, phase: str) -> frozenset[str] | None:
        """Dims of a phase of a linear operator; None where the program does not have it."""
        grid = (self.program.grid or {}).get(phase)
        if grid is not None:
            return frozenset(grid)
        for instructions in self.program.programs:
            for node in instructions:
                if isinstance(node, Compute) and node.phase == phase:
                    return frozenset(node.sub_operator or {})
        return None

    @cached_property
    def makers(self) -> dict[str, Phase]:
        """Tensor -> the phase that makes it; all others are data from outside."""
        return {self.real(phase.writes.tensor): phase for phase in self.phases.values()}

    def maker(self, block: str) -> Phase | None:
        """The phase that makes a block; None for data from outside or without meaning."""
        place = self.place(block)
        return None if place is None else self.makers.get(place.tensor)

    def real(self, tensor: str) -> str:
        """The tensor that a tensor is, cut in another way perhaps."""
        known = (self.program.tensors or {}).get(tensor)
        return tensor if known is None else known.of or tensor

    def place(self, block: str) -> Place | None:
        """The place of a block in its tensor; None for scratch and for data without meaning.

        Raises `ProgramError` for a block outside the cuts of its tensor.
        """
        if block not in self._places:
            self._places[block] = self._find(block)
        return self._places[block]

    def _find(self, block: str) -> Place | None:
        match = _NAME.fullmatch(block)
        if match is None:
            return None
        tensor, index = match[1], tuple(map(int, match[2].split(","))) if match[2] else ()
        known = (self.program.tensors or {}).get(tensor)
        if known is None:
            box = tuple((part, part + 1) for part in index)
            # Without cuts a block is a box of slices, if a phase names its tensor; `x.tmp[3]` of a
            # script means nothing.
            meant = tensor in self._named or parse_block(block) is not None
            return Place(tensor, box) if meant else None
        counts = [len(line) - 1 for line in known.cuts]
        if len(index) != len(counts) or any(map(int.__ge__, index, counts)):
            raise ProgramError(
                f"expected blocks of {tensor} below [{','.join(map(str, counts))}], got {block}"
            )
        lines = zip(known.cuts, index, strict=True)
        return Place(
            known.of or tensor, tuple((line[part], line[part + 1]) for line, part in lines)
        )

    @cached_property
    def _named(self) -> frozenset[str]:
        return frozenset(
            template.tensor
            for phase in self.phases.values()
            for template in (*phase.reads, phase.writes)
        )

    def elements(self, block: str) -> int | None:
        """Elements of a block, a scratch having those of its block; None where not defined."""
        if block not in self._elements:
            self._elements[block] = self._count(block)
        return self._elements[block]

    def _count(self, block: str) -> int | None:
        base = block.rstrip("'")
        place = self.place(base)
        if place is not None and base.rpartition("[")[0] in (self.program.tensors or {}):
            return prod(end - first for first, end in place.box)
        parsed, shape, grid = parse_block(base), self.program.shape or {}, self._linear_grid
        if parsed is None or not grid or not set(grid) <= set(shape):
            return None
        dims = [dim for dim in tensor_dims(parsed.tensor) if dim in shape]
        return prod(shape[dim] // grid.get(dim, 1) for dim in dims)

    def size(self, block: str) -> int:
        """Elements of a block. Raises `UnknownSizeError` where the program does not define them."""
        elements = self.elements(block)
        if elements is None:
            raise UnknownSizeError(
                f"the elements of {block} are not known: give the shape of the operator, or the "
                "cuts of its tensor in tensors"
            )
        return elements

    @cached_property
    def _linear_grid(self) -> dict[str, int]:
        return {d: n for slices in (self.program.grid or {}).values() for d, n in slices.items()}

    def block_at(self, tensor: str, box: Box) -> str:
        """A name for a box of a tensor: that of its block, if there is one, else its elements."""
        for name, known in (self.program.tensors or {}).items():
            if (known.of or name) != tensor:
                continue
            index = _index(known, box)
            if index is not None:
                return block_name(name, index)
        if not box or tensor not in (self.program.tensors or {}):
            return block_name(tensor, tuple(first for first, _ in box)) if box else tensor
        return f"{tensor}[{', '.join(f'{first}:{end}' for first, end in box)}]"

    def index_of(self, phase: Phase, box: Box) -> Index | None:
        """Which output block of a phase a box is; None where it is none or several."""
        known = (self.program.tensors or {}).get(phase.writes.tensor)
        if len(box) != len(phase.writes.entries):
            return None
        return tuple(first for first, _ in box) if known is None else _index(known, box)


@shared("tensors", "phases", "grid", "shape")
def meaning_of(program: Program) -> Meaning:
    """What the names of a program mean; the same for programs that share their tables."""
    return Meaning(program)


def _index(tensor: Tensor, box: Box) -> Index | None:
    """Which block of a tensor a box is."""
    if len(box) != len(tensor.cuts):
        return None
    lines = [list(pairwise(cuts)) for cuts in tensor.cuts]
    sides = zip(lines, box, strict=True)
    index = [line.index(side) if side in line else -1 for line, side in sides]
    return None if -1 in index else tuple(index)
