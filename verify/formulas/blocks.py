"""Where the blocks of a primitive are over all meshes, and how many there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import z3

from primepar.schedule.operators import Phase, tensor_dims
from primepar.schedule.sequence import HOMES
from primepar.verify.answer import check_by
from primepar.verify.deadline import UndecidedError
from primepar.verify.formulas.amount import Amount
from primepar.verify.formulas.polynomial import Polynomial
from primepar.verify.primitive import terms
from primepar.verify.primitive.affine import Affine
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import Block, Point, SymbolicMap, overlaps

SIZES = ("M", "N", "K")
"""Dims whose sizes a formula is given; M counts the rows of all batches."""
ONE = Polynomial.of(1)
LATE = "Z3 did not decide it in the time that it was given"


@dataclass(frozen=True, eq=False)
class Blocks:
    """What is asked of a primitive over all meshes until `deadline`, a time of `perf_counter`."""

    symbolic: SymbolicMap
    deadline: float

    # Where

    def works(self, phase: Phase, tensor: str, device: Point, step: Term, block: Block) -> Term:
        """The device has the block in its product of that step, which is one of the phase."""
        own = self.symbolic.block(phase, tensor, device, step)
        return terms.And(terms.inside(step, self.symbolic.steps.term), overlaps(own, block))

    def rests(self, tensor: str, device: Point, block: Block) -> Term:
        """The device is a home of the block."""
        if not self.symbolic.homes:
            return terms.FALSE
        return overlaps(self.symbolic.home(tensor, device), block)

    def keeps(self, phase: Phase, tensor: str) -> bool:
        """Whether copies brought in forward are still there in this phase."""
        return phase != "forward" and tensor in self.symbolic.primitive.keeps

    def inside(self, block: Block, *devices: Point) -> Term:
        """The block is one of its tensor, and the devices are in the mesh."""
        in_mesh = map(self.symbolic.in_mesh, devices)
        return terms.And(self.symbolic.in_grid(block), *in_mesh)

    def moved(self, device: Point, offset: tuple[int, ...]) -> Point:
        """The device that far away, every axis being a ring."""
        space, lengths = self.symbolic.space, self.symbolic.lengths
        return tuple(
            ((space.below(at, length) + step) % space.exactly(length)).term if step else at
            for at, step, length in zip(device, offset, lengths, strict=True)
        )

    # How many

    def polynomial(self, form: Affine | None) -> Polynomial:
        """An affine form of the sides. Raises `UndecidedError` for the steps if they are none."""
        if form is None:
            raise UndecidedError("the number of steps is no sum of sides")
        return Polynomial.affine(form, self.symbolic.space.names)

    def size(self, block: Block) -> Polynomial:
        """How many blocks share these digits."""
        radices = (self.symbolic.radices[dim][at] for dim, at in self.symbolic.opened(block))
        return prod(map(self.polynomial, radices), start=ONE)

    def number(self, tensor: str) -> Polynomial:
        """How many blocks a tensor is cut in."""
        return self.size(dict.fromkeys(tensor_dims(tensor), ()))

    def devices(self) -> Polynomial:
        """How many devices there are."""
        return prod(map(self.polynomial, self.symbolic.lengths), start=ONE)

    @cached_property
    def elements(self) -> dict[str, Amount]:
        """Elements of one block of I, W and O."""
        found = {}
        for tensor in HOMES:
            dims = (dim for dim in tensor_dims(tensor) if dim in SIZES)
            whole = prod((Polynomial.variable(f"size {dim}") for dim in dims), start=ONE)
            found[tensor] = Amount.of(whole) / Amount.of(self.number(tensor))
        return found

    # Questions

    def never(self, counter: Term) -> bool:
        """Whether nothing satisfies it for any side. Raises `UndecidedError` if Z3 is too late."""
        return next(self.cases(counter, []), None) is None

    def cases(self, condition: Term, choices: list[Term]) -> Iterator[tuple[bool, ...]]:
        """Which truths the choices have at once, where the condition holds; each once.

        Raises `UndecidedError` likewise.
        """
        named = [z3.Bool(f"case {place}") for place in range(len(choices))]
        pairs = zip(named, choices, strict=True)
        solver = self._solver
        solver.push()
        try:
            solver.add(condition, *(name == each for name, each in pairs))
            while (answer := check_by(solver, self.deadline)) == z3.sat:
                model = solver.model()
                truths = tuple(z3.is_true(model.eval(name)) for name in named)
                differ = (name != one for name, one in zip(named, truths, strict=True))
                solver.add(terms.Or(*differ))
                yield truths
            if answer == z3.unknown:
                raise UndecidedError(LATE)
        finally:
            solver.pop()

    @cached_property
    def _solver(self) -> Any:
        solver = z3.Solver()
        solver.add(self.symbolic.all_sides)
        return solver


def formula(symbolic: SymbolicMap, name: str) -> Amount | None:
    """A primitive's own formula `sent` or `held`; None if it has none.

    Raises `SymbolicError` if amounts cannot follow it.
    """
    variables = [f"size {dim}" for dim in SIZES]
    variables += [f"side {own}" for own in symbolic.space.names]
    given = [Amount.of(Polynomial.variable(variable)) for variable in variables]
    amount = getattr(symbolic.primitive, name)(*given)
    return None if amount is None else Amount.of(amount)
