"""The conditions under which a device has a block, and the numbers of blocks.

All conditions are expressions. They are evaluated on arrays of small meshes, and Z3 is asked about
the same expressions for every side.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, reduce
from itertools import product
from math import prod
from operator import or_
from typing import Any

import z3

from primepar.certify.claims import Slices
from primepar.schedule.deadline import UnansweredError
from primepar.schedule.expression import Expression, Number, evaluate, every, name, negated
from primepar.schedule.operators import PHASES, PRODUCTS, Phase, tensor_dims
from primepar.schedule.primitive import ANY, Primitive
from primepar.schedule.tracing import maps_of
from primepar.verify.formulas.polynomial import Polynomial
from primepar.verify.formulas.symbolic_amount import ConditionalRatio, cases_of
from primepar.verify.primitive import z3_terms as terms
from primepar.verify.primitive.affine import Affine
from primepar.verify.primitive.z3_symbols import SymbolSpace, Term, truth
from primepar.verify.z3_answer import check_by

Condition = Any
"""A condition of expressions, or a plain bool."""
Point = Mapping[str, Number]
"""Axis -> the coordinate of a device."""
Block = dict[str, tuple[Any, ...]]
"""Dim -> all digits of a tensor's index; an open digit is `ANY`."""
ONE = Polynomial.of(1)


def either(conditions: Iterable[Condition]) -> Condition:
    """The disjunction of conditions."""
    return reduce(or_, conditions, False)


def within(index: Number, limit: Number) -> Condition:
    """The index is 0 or more, and below the limit."""
    return (index >= 0) & (index < limit)


def overlap(first: Block, second: Block) -> Condition:
    """The two sets have a block in common."""
    pairs = (pair for dim in first for pair in zip(first[dim], second[dim], strict=True))
    return every(a == b for a, b in pairs if a is not ANY and b is not ANY)


class Values(dict[str, Any]):
    """Name -> value; a digit of a block is named by its text, and evaluated once."""

    def __init__(self, digits: Mapping[str, Number], given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.digits = digits

    def __missing__(self, text: str) -> Any:
        self[text] = evaluate(self.digits[text], self)
        return self[text]


class BlockSets:
    """Questions about a primitive on all meshes, until `deadline`, a time of `perf_counter`."""

    def __init__(self, primitive: Primitive, slices: Slices, deadline: float) -> None:
        self.primitive, self.slices, self.deadline = primitive, slices, deadline
        self.maps, self.homes = maps_of(primitive), bool(maps_of(primitive).homes)
        self.space = SymbolSpace(primitive.side_names)
        self.digits: dict[str, Number] = {}
        """Text of a digit of a block -> the digit."""
        self.values = Values(
            self.digits, dict(zip(primitive.side_names, self.space.sides, strict=True))
        )
        """Name -> its Z3 symbol."""
        self.steps, self.last = self.maps.steps, self.maps.steps - 1
        self.lengths = {axis: name(side) for axis, side in primitive.axis_sides.items()}
        self.here, self.now = self.point(""), self.step("t")

    # Where

    def _variable(self, text: str, limit: Number) -> Expression:
        room = self.space.of(evaluate(limit, self.values)).high
        self.values[text] = self.space.below(terms.Int(text), room)
        return name(text)

    def point(self, tag: str) -> Point:
        """Coordinates of any device."""
        return {axis: self._variable(axis + tag, side) for axis, side in self.lengths.items()}

    def step(self, text: str) -> Expression:
        """Any step of a phase."""
        return self._variable(text, self.steps)

    def any_block(self, tensor: str, tag: str = "") -> Block:
        """Any block of a tensor."""
        return {
            dim: tuple(self._variable(f"in_{dim}{place}{tag}", count)
                       for place, count in enumerate(self.slices.get(dim, ())))
            for dim in tensor_dims(tensor)
        }  # fmt: skip

    def block(self, phase: Phase, tensor: str, device: Point, step: Number) -> Block:
        """The blocks of `tensor` that a device works on."""
        return self._read(self.maps.phases[phase], tensor, {**device, "t": step})

    def home(self, tensor: str) -> Block:
        """The resident blocks of `tensor` on this device; a gradient has the home of its tensor."""
        return self._read(self.maps.homes[tensor.removeprefix("d")], tensor, self.here)

    def _read(self, digits: Mapping[str, Any], tensor: str, values: Mapping[str, Number]) -> Block:
        sides = {side: name(side) for side in self.primitive.side_names}
        given = {**sides, **values}
        block = {}
        for dim in tensor_dims(tensor):
            index = digits.get(dim, ())
            index = (*index, *(ANY,) * (len(self.slices.get(dim, ())) - len(index)))
            block[dim] = tuple(
                digit if digit is ANY else self._named(evaluate(digit, given)) for digit in index
            )
        return block

    def _named(self, digit: Number) -> Number:
        if not isinstance(digit, Expression) or digit.operator == "name":
            return digit
        text = str(digit)
        self.digits.setdefault(text, digit)
        return name(text)

    def works(
        self, phase: Phase, tensor: str, device: Point, step: Number, block: Block
    ) -> Condition:
        """The device uses the block in its product of that step of the phase."""
        used = self.block(phase, tensor, device, step)
        return within(step, self.steps) & overlap(used, block)

    def adds(self, phase: Phase, device: Point, step: Number, block: Block) -> Condition:
        """The device adds to the sum of the block at that step of the phase."""
        return self.works(phase, PRODUCTS[phase].writes, device, step, block)

    def is_resident(self, tensor: str, device: Point, block: Block) -> Condition:
        """The device is a home of the block."""
        if not self.homes:
            return False
        home = self._read(self.maps.homes[tensor.removeprefix("d")], tensor, device)
        return overlap(home, block)

    def keeps(self, phase: Phase, tensor: str) -> bool:
        """Whether copies that forward received are still live in this phase."""
        return phase != "forward" and tensor in self.primitive.keeps

    def in_mesh(self, *devices: Point) -> Condition:
        """The devices are in the mesh."""
        return every(
            within(position, self.lengths[axis])
            for device in devices
            for axis, position in device.items()
        )

    def inside(self, block: Block, *devices: Point) -> Condition:
        """The block is one of its tensor, and the devices are in the mesh."""
        digits = (within(digit, self.slices[dim][place])
                  for dim, index in block.items() for place, digit in enumerate(index))  # fmt: skip
        return self.in_mesh(*devices) & every(digits)

    def contains(self, have: Block, need: Block) -> Condition:
        """All blocks of `need` are among those of `have`."""
        wide = (self.slices[dim][place] == 1 for dim, index in have.items()
                for place, digit in enumerate(index)
                if digit is not ANY and need[dim][place] is ANY)  # fmt: skip
        return overlap(have, need) & every(wide)

    @cached_property
    def shares_output_gradient(self) -> bool:
        """Whether backward and gradient run together, as both need the same dO at every step.

        They do not if dO stays resident in one of them; otherwise on every mesh they need different
        blocks, which is checked on the first devices and steps. Raises `UnansweredError` if neither
        is proved for every side.
        """

        def needed(phase: Phase, device: Point, step: Number) -> tuple[Condition, Block]:
            inside = self.in_mesh(device) & within(step, self.steps)
            return inside, self.block(phase, "dO", device, step)

        def leaves(phase: Phase) -> Condition:
            inside, block = needed(phase, self.here, self.now)
            return inside & negated(self.contains(self.home("dO"), block))

        def differ(device: Point, step: Number) -> Condition:
            (inside, first), (_, second) = (needed(phase, device, step) for phase in PHASES[1:])
            return inside & negated(self.contains(first, second) & self.contains(second, first))

        corner = product((0, 1), repeat=len(self.here) + 1)
        alike = every(
            negated(differ(dict(zip(self.here, place, strict=False)), place[-1]))
            for place in corner
        )
        if self.never(leaves("backward") & alike) or self.never(leaves("gradient")):
            return False
        if self.never(differ(self.here, self.now)):
            return True
        raise UnansweredError("whether backward and gradient share dO is not known for every side")

    # How many

    def form(self, number: Number) -> Affine:
        """A number of devices, steps or slices. Raises `UnansweredError` if it is not affine."""
        form = self.space.of(evaluate(number, self.values)).form
        if form is None:
            raise UnansweredError(f"{number} is no sum of sides")
        return form

    def product(self, *numbers: Number) -> Polynomial:
        """The product of numbers of devices, steps or slices."""
        forms = map(self.form, numbers)
        return prod((Polynomial.affine(form, self.space.names) for form in forms), start=ONE)

    def size(self, block: Block) -> Polynomial:
        """The number of blocks with these digits."""
        return self.product(*(self.slices[dim][place] for dim, place in opened(block)))

    def number(self, tensor: str) -> Polynomial:
        """The number of blocks of a tensor."""
        return self.product(
            *(count for dim in tensor_dims(tensor) for count in self.slices.get(dim, ()))
        )

    def elements(self, tensor: str) -> Polynomial:
        """Elements of one block of a tensor: the product of slice lengths such as `size M`."""
        dims = (dim for dim in tensor_dims(tensor) if dim != "B")
        return prod((Polynomial.variable(f"size {dim}") for dim in dims), start=ONE)

    def amount(self, formula: Number) -> list[ConditionalRatio]:
        """The value of a formula `sent` or `held`, by cases.

        The sizes that it is given are the length of a slice times the number of slices; M counts
        the rows of all batches. Raises `SymbolicError` if it cannot be evaluated on amounts.
        """
        if self.primitive.keeps and not self.homes:
            raise UnansweredError("what is kept is counted only where tensors have homes")
        cut = {dim: self.slices.get(dim, ()) for dim in "BMNK"}
        cut["M"] = (*cut["M"], *cut.pop("B"))
        sizes = {dim: Polynomial.variable(f"size {dim}") * self.product(*counts)
                 for dim, counts in cut.items()}  # fmt: skip
        sides = {side: Polynomial.variable(f"side {side}") for side in self.space.names}
        return cases_of(formula, {**sizes, **sides})

    # Questions

    def term(self, condition: Condition) -> Term:
        """A condition as a Z3 term."""
        return truth(evaluate(condition, self.values))

    def never(self, counter: Condition) -> bool:
        """Whether nothing satisfies it, for all sides. Raises `UnansweredError` if Z3 is late."""
        return self.is_never(self.term(counter))

    def is_never(self, counter: Term) -> bool:
        """The same for a term."""
        return next(self.cases(counter, []), None) is None

    def cases(self, condition: Term, choices: list[Term]) -> Iterator[tuple[bool, ...]]:
        """Yield each combination of truth values of the choices that the condition allows.

        Raises `UnansweredError` if Z3 does not decide it in time.
        """
        named = [z3.Bool(f"case {place}") for place in range(len(choices))]
        solver = self.solver
        solver.push()
        try:
            pairs = zip(named, choices, strict=True)
            solver.add(condition, *(name == choice for name, choice in pairs))
            while (answer := check_by(solver, self.deadline)) == z3.sat:
                model = solver.model()
                truths = tuple(z3.is_true(model.eval(name)) for name in named)
                pairs = zip(named, truths, strict=True)
                solver.add(terms.Or(*(name != value for name, value in pairs)))
                yield truths
            if answer == z3.unknown:
                raise UnansweredError("Z3 did not decide it within its time limit")
        finally:
            solver.pop()

    @cached_property
    def solver(self) -> Any:
        """A solver with the fact that all sides are 1 or more."""
        solver = z3.Solver()
        solver.add(*(side.term >= 1 for side in self.space.sides))
        return solver


def opened(block: Block) -> list[tuple[str, int]]:
    """(dim, place) of the digits that a block leaves open."""
    return [(dim, place) for dim, index in block.items()
            for place, digit in enumerate(index) if digit is ANY]  # fmt: skip
