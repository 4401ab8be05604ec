"""Compares the formulas of memory and traffic of a primitive with its programs, mesh by mesh.

`sent` has to be what leaves the devices, and `held` a bound of what is live on any device. Both are
counted in the lowered program of every mesh with sides up to 6 and at most 64 devices (32 where a
mesh has several sides, of which there are many more), for the smallest operator and for three that
are long in one dim. This proves nothing about other meshes.
So the result states on how many meshes the formula is equal to what was counted. Example: SUMMA has
the meshes s = 1 to 6, and both of its formulas are equal on 6 meshes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, reduce
from math import prod
from time import perf_counter

import msgspec
import numpy as np

from primepar.errors import SymbolicError
from primepar.schedule.deadline import UnansweredError, in_time
from primepar.schedule.evidence import MapFault, OtherThanFormula, OverFormula
from primepar.schedule.ledger import live_elements, resident_copies, sent_blocks
from primepar.schedule.lowering import lower
from primepar.schedule.meaning import Meaning
from primepar.schedule.operators import Linear
from primepar.schedule.primitive import Primitive
from primepar.schedule.program import Program
from primepar.schedule.sequence import Element, Sequence
from primepar.schedule.tracing import formula
from primepar.schedule.words import mesh_text
from primepar.verify.counterexample.primitive import MeshFault, refuted
from primepar.verify.primitive.smallest_mesh import MOST_SUB_OPERATORS, Sides, side_choices
from primepar.verify.report import PropertyResult

MOST_DEVICES_OF_SIDES = 32
"""On meshes with several sides; `side_choices` has up to 64 devices."""
WIDE, MANY = ("M", "N", "K"), 16
"""Dims that are made this many times as long, one by one."""


class _Mesh:
    """A mesh with its program, which is the same for every operator but for sizes of blocks."""

    def __init__(self, primitive: Primitive, sides: Sides) -> None:
        self.sequence = Sequence.of(primitive, *sides)
        smallest = Linear.smallest(self.sequence.grid)
        longer = ({dim: MANY * smallest.size(dim)} for dim in WIDE)
        # What is sent are parts of MN, NK and MK: a formula of these that is right for all four
        # operators is right for every one.
        self.operators = (smallest, *(replace(smallest, **sizes) for sizes in longer))
        self._sizes: dict[str, np.ndarray] = {}
        """Tensor -> the elements of each of its blocks, for each operator."""

    @cached_property
    def program(self) -> Program:
        """The training step, without a shape."""
        return lower(self.sequence)

    def sizes(self, block: str) -> np.ndarray:
        """The elements of a block, for each operator."""
        tensor = block.partition("[")[0]
        if tensor not in self._sizes:
            shapes = (
                operator.block_shape(tensor, self.sequence.grid) for operator in self.operators
            )
            self._sizes[tensor] = np.array([prod(shape) for shape in shapes])
        return self._sizes[tensor]

    def shape(self, place: int) -> dict[str, int]:
        """The sizes of an operator."""
        return {dim: self.operators[place].size(dim) for dim in self.sequence.grid}


def _too_much(mesh: _Mesh, stated: list[Fraction]) -> MapFault | bool:
    """Where `held` is too small on a mesh; else whether it is exactly what is live at the peak."""
    # One pass with an array for each block counts all four operators, as the program is the same.
    peaks = [
        reduce(np.maximum, live_elements(mesh.program, rank, mesh.sizes))
        for rank in range(mesh.sequence.ranks)
    ]
    is_equal = True
    for place, bound in enumerate(stated):
        live = [int(peak[place]) for peak in peaks]
        most = max(live)
        is_equal &= most == bound
        if most > bound:
            device = mesh.sequence.device(live.index(most))
            return OverFormula(mesh.shape(place), device, bound, most)
    return is_equal


def _unequal(mesh: _Mesh, stated: list[Fraction]) -> MapFault | bool:
    """Where `sent` is wrong on a mesh; True if it is not."""
    times = sent_blocks(mesh.program)
    ranks = mesh.sequence.ranks
    for place, amount in enumerate(stated):
        total = sum(int(mesh.sizes(block)[place]) * often for block, often in times.items())
        # `sent` is of one device: what all send, divided by their number, so that a ring's ends
        # count too.
        if total != amount * ranks:
            return OtherThanFormula(mesh.shape(place), amount, total, ranks)
    return True


@dataclass
class _Comparison:
    """A formula, and what came of it on the meshes so far."""

    name: str
    formula: Callable[[Element, Linear], Fraction | None]
    compare: Callable[[_Mesh, list[Fraction]], MapFault | bool]
    meshes: int = 0
    equal: int = 0
    seconds: float = 0.0
    decided: PropertyResult | None = None
    """The result, if no other mesh can change it."""

    def on(self, mesh: _Mesh) -> None:
        """Compare on one mesh."""
        start = perf_counter()
        (element,) = mesh.sequence.elements
        stated = [self.formula(element, operator) for operator in mesh.operators]
        given = self.compare(mesh, [amount for amount in stated if amount is not None])
        self.seconds += perf_counter() - start
        self.meshes += 1
        if isinstance(given, bool):
            self.equal += given
        else:
            self.decided = refuted(self.name, MeshFault(mesh.sequence, given, self.seconds))

    def result(self, last: _Mesh | None) -> PropertyResult:
        """The result after the last mesh; there is none if not all were compared."""
        if self.decided is not None:
            return self.decided
        if last is None:
            reason = (
                f"stopped after {self.meshes} meshes, of which none is wrong: give it a longer "
                "--timeout"
            )
            return PropertyResult(self.name, "unknown", self.seconds, reason=reason)
        notes = []
        if self.equal < self.meshes:
            looser = self.meshes - self.equal
            notes.append(f"held is more than what is live on {looser} mesh{'es' * (looser > 1)}")
        if self.name == "memory":
            program = msgspec.structs.replace(last.program, shape=last.shape(0))
            copies = resident_copies(program, Meaning(program)).items()
            listed = ", ".join(f"{tensor} {count}" for tensor, count in copies)
            notes.append(f"resident copies at {mesh_text(last.sequence.mesh)}: {listed}")
        return PropertyResult(
            self.name, "equal", self.seconds, reason="\n".join(notes) or None, meshes=self.equal
        )


def formula_results(primitive: Primitive) -> Iterator[PropertyResult]:
    """Yield the results of memory and traffic, each if the primitive has a formula for it.

    What is not compared on every mesh at the deadline is unknown. Raises `PrimitiveError` if a
    formula cannot be called with numbers.
    """
    asked = list(_asked(primitive))
    last = None
    with suppress(UnansweredError):
        last = _compare(primitive, asked)
    for comparison in asked:
        yield comparison.result(last)


def _compare(primitive: Primitive, asked: list[_Comparison]) -> _Mesh | None:
    """Compare on every mesh, and return the last one. Raises `UnansweredError` at the deadline."""
    mesh = None
    several = len(primitive.side_names) > 1
    for sides in in_time(side_choices(primitive)):
        open_ = [comparison for comparison in asked if comparison.decided is None]
        if not open_:
            break
        candidate = _Mesh(primitive, sides)
        # Three sides up to 6 would be 216 meshes, most of them large.
        if several and candidate.sequence.ranks > MOST_DEVICES_OF_SIDES:
            break  # fewest devices come first
        if prod(candidate.sequence.grid.values()) <= MOST_SUB_OPERATORS:
            mesh = candidate
            for comparison in open_:
                comparison.on(mesh)
    return mesh


def _asked(primitive: Primitive) -> Iterator[_Comparison]:
    for comparison, method in (
        (_Comparison("memory", Element.held, _too_much), "held"),
        (_Comparison("traffic", Element.sent, _unequal), "sent"),
    ):
        try:
            if formula(primitive, method) is None:
                continue
        except SymbolicError as error:
            comparison.decided = PropertyResult(comparison.name, "unknown", 0.0, reason=str(error))
        except UnansweredError:
            pass  # nor is it compared on any mesh
        yield comparison
