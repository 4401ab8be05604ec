"""Where the blocks of a primitive are over all meshes, and how many there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import z3

from primepar.errors import SymbolicError
from primepar.schedule.operators import PRODUCTS, Phase, tensor_dims
from primepar.verify.answer import check_by
from primepar.verify.deadline import UndecidedError
from primepar.verify.formulas.amount import Amount
from primepar.verify.formulas.polynomial import Polynomial
from primepar.verify.primitive import terms
from primepar.verify.primitive.affine import Affine
from primepar.verify.primitive.symbol import Term
from primepar.verify.primitive.symbolic import Block, Point, SymbolicMap, overlaps

ONE = Polynomial.of(1)
_USES: tuple[Phase, ...] = ("backward", "gradient")
"""Phases that read dO."""


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

    def adds(self, phase: Phase, device: Point, step: Term, block: Block) -> Term:
        """The device adds to the sum of the block at that step of the phase."""
        return self.works(phase, PRODUCTS[phase].writes, device, step, block)

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
        return terms.And(self.symbolic.in_grid(block), *map(self.symbolic.in_mesh, devices))

    @cached_property
    def shares_output_gradient(self) -> bool:
        """Whether backward and gradient run together, as both want the same dO at every step.

        They do not where dO stays at home. That they want different ones on every mesh where it
        does not is looked at on the first devices and steps. Raises `UndecidedError` if neither is
        proved for every side.
        """
        symbolic, now = self.symbolic, self.symbolic.now
        home = symbolic.home("dO", symbolic.here)
        leaves = [terms.And(self._in_phase(symbolic.here, now), terms.Not(symbolic.contains(
            home, symbolic.block(phase, "dO", symbolic.here, now)))) for phase in _USES]  # fmt: skip
        every = product(map(terms.IntVal, (0, 1)), repeat=len(symbolic.here) + 1)
        alike = terms.And(*(terms.Not(self._differ(device, step)) for *device, step in every))
        if self.never(terms.And(leaves[0], alike)) or self.never(leaves[1]):
            return False
        if self.never(self._differ(symbolic.here, now)):
            return True
        raise UndecidedError(
            "backward and gradient want dO at other steps, and whether one way serves both "
            "is not known for every side"
        )

    def _in_phase(self, device: Point, step: Term) -> Term:
        return terms.And(
            self.symbolic.in_mesh(device), terms.inside(step, self.symbolic.steps.term)
        )

    def _differ(self, device: Sequence[Term], step: Term) -> Term:
        """A device wants another dO in gradient than at the same step of backward."""
        own, other = (self.symbolic.block(phase, "dO", tuple(device), step) for phase in _USES)
        same = terms.And(self.symbolic.contains(own, other), self.symbolic.contains(other, own))
        return terms.And(self._in_phase(tuple(device), step), terms.Not(same))

    # How many

    @cached_property
    def steps(self) -> Affine:
        """The number of steps. Raises `UndecidedError` if it is no sum of sides."""
        form = self.symbolic.steps.form
        if form is None:
            raise UndecidedError("the number of steps is no sum of sides")
        return form

    def polynomial(self, form: Affine) -> Polynomial:
        """An affine form of the sides."""
        sides = zip(self.symbolic.space.names, form.coefficients, strict=True)
        parts = [((f"side {name}",), factor) for name, factor in sides]
        return Polynomial.sum([*parts, ((), form.constant)])

    def product(self, *forms: Affine) -> Polynomial:
        """The product of affine forms."""
        return prod(map(self.polynomial, forms), start=ONE)

    def size(self, block: Block) -> Polynomial:
        """How many blocks share these digits."""
        opened = self.symbolic.opened(block)
        return self.product(*(self.symbolic.radices[dim][place] for dim, place in opened))

    def number(self, tensor: str) -> Polynomial:
        """How many blocks a tensor is cut in."""
        return self.size(dict.fromkeys(tensor_dims(tensor), ()))

    def elements(self, tensor: str) -> Polynomial:
        """Elements of one block of a tensor, of so many rows, `size M`, and columns in a slice."""
        return prod(
            (Polynomial.variable(f"size {dim}") for dim in tensor_dims(tensor) if dim != "B"),
            start=ONE,
        )

    def formula(self, name: str) -> Amount | None:
        """A primitive's own formula `sent` or `held`; None if it has none.

        The sizes that it is given are those of a slice, as often as there are slices; M counts the
        rows of all batches. Raises `SymbolicError` if amounts cannot follow it.
        """
        radices = {dim: self.symbolic.radices.get(dim, ()) for dim in "BMNK"}
        radices["M"] += radices.pop("B")
        sizes = (Polynomial.variable(f"size {dim}") * self.product(*digits)
                 for dim, digits in radices.items())  # fmt: skip
        sides = (Polynomial.variable(f"side {own}") for own in self.symbolic.space.names)
        try:
            amount = getattr(self.symbolic.primitive, name)(*map(Amount.of, (*sizes, *sides)))
        except SymbolicError:
            raise
        except Exception as error:
            raise SymbolicError(
                f"{name} cannot be called for every side: {type(error).__name__}: {error}"
            ) from None
        return None if amount is None else Amount.of(amount)

    # Questions

    def never(self, counter: Term) -> bool:
        """Whether nothing satisfies it for any side. Raises `UndecidedError` if Z3 is too late."""
        return next(self.cases(counter, []), None) is None

    def cases(self, condition: Term, choices: list[Term]) -> Iterator[tuple[bool, ...]]:
        """Which truths the choices have at once, where the condition holds; each once.

        Raises `UndecidedError` likewise.
        """
        named = [z3.Bool(f"case {place}") for place in range(len(choices))]
        solver = self._solver
        solver.push()
        try:
            pairs = zip(named, choices, strict=True)
            solver.add(condition, *(name == each for name, each in pairs))
            while (answer := check_by(solver, self.deadline)) == z3.sat:
                model = solver.model()
                truths = tuple(z3.is_true(model.eval(name)) for name in named)
                pairs = zip(named, truths, strict=True)
                solver.add(terms.Or(*(name != one for name, one in pairs)))
                yield truths
            if answer == z3.unknown:
                raise UndecidedError("Z3 did not decide it in the time that it was given")
        finally:
            solver.pop()

    @cached_property
    def _solver(self) -> Any:
        solver = z3.Solver()
        solver.add(self.symbolic.all_sides)
        return solver
