"""Programs of one linear operator, and of one redistribution, for use outside a whole step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from primepar.errors import SequenceError, ShapeError
from primepar.operators.builder import Cuts, ProgramBuilder, View, even
from primepar.operators.linear import Products
from primepar.operators.redistribution import held_after, indices, moved, reblocked
from primepar.passes import apply, apply_in_turn
from primepar.plan.layouts import Way
from primepar.schedule.layout import Cells, Layout
from primepar.schedule.lowering import layout
from primepar.schedule.movement import Movement
from primepar.schedule.operators import Linear, Phase
from primepar.schedule.program import Program
from primepar.schedule.sequence import Sequence

NAME = "linear"
"""The name of the operator in its programs."""


def resident_layout(
    movement: Movement, phase: Phase, tensor: str, *, last: bool = False
) -> Layout:  # fmt: skip
    """Return the layout of a tensor before `phase`, or with `last` after its last step.

    Raises `SequenceError` if B is split, or unless every device holds a rectangle of blocks.
    """
    if "B" in movement.sequence.grid:
        raise SequenceError(
            f"sequence {str(movement.sequence)!r}: expected no split of B, as rows of all "
            "sequences of a batch are one dim here: write M for B"
        )
    return rectangular(layout(movement, phase, tensor, last=last).coarsest(), tensor)


def rectangular(layout: Layout, tensor: str) -> Layout:
    """Return `layout`. Raises `SequenceError` unless every device holds a rectangle of blocks."""
    for rank, blocks in enumerate(layout.held):
        slices = [layout.slices(rank, dim) for dim in range(len(layout.grid))]
        if not blocks or set(blocks) != set(product(*slices)):
            raise SequenceError(
                f"tensor {tensor}: expected on every device a block, or all blocks of some slices "
                f"of each dim, got {', '.join(map(str, blocks)) or 'none'} on device {rank}: "
                "choose another sequence"
            )
    return layout


def check_divided(shape: tuple[int, ...], grid: tuple[int, ...], what: str) -> None:
    """Raise `ShapeError` if the grid does not divide `shape`."""
    for dim, (size, slices) in enumerate(zip(shape, grid, strict=True)):
        if size % slices:
            padded = -(-size // slices) * slices
            raise ShapeError(
                f"{what}: expected dim {dim} to be a multiple of its {slices} slices, got {size}: "
                f"pad it to {padded}"
            )


def lower_move(
    source: Layout, target: Layout, shape: tuple[int, ...], name: str = "x", wide: bool = False
) -> Program:
    """Return the program that redistributes a tensor from one layout to another.

    Raises `ShapeError` if a layout does not divide it.
    """
    check_divided(shape, Cells.of(source, target).grid, name)
    builder = ProgramBuilder(source.ranks)
    view = _begun(builder, name, source, shape, wide)
    arrived = moved(builder, view, Way(source, target), even(shape, target.grid), f"{name}.moved")
    builder.end_with(arrived)
    return apply(builder.program())


class LinearPrograms(NamedTuple):
    """Programs of one linear operator, and the names of their outputs.

    Forward maps `x` and `weight` to `output` and the blocks that are `kept` on every rank. Backward
    maps these, `dy` and `weight` to `dx` and `dw`. If forward ends with other blocks of the weight,
    these are kept, and backward does not take `weight`.
    """

    forward: Program
    backward: Program
    kept: tuple[tuple[str, ...], ...]
    output: str
    dx: str
    dw: str


def lower_linear(
    sequence: Sequence,
    operator: Linear,
    source: Layout,
    wide_sums: bool = False,
    target: Layout | None = None,
    turned: bool = False,
) -> LinearPrograms:
    """Lower a linear operator whose input, and the gradient of it, have layout `source`.

    The output and the gradient of it have layout `target`, by default the resident layout of O.
    With `wide_sums` sums of several sub-operators are wide until they are complete. Blocks of a
    `turned` weight, and of its gradient, are (K, N).
    Raises `ShapeError` if a layout does not divide a tensor, and `SequenceError` for a resident
    layout that is not a rectangle of blocks on every device.
    """
    output = resident_layout(Movement(sequence), "forward", "O", last=True)
    ends = source, output, target or output
    ahead, back = (_Lowering.of(sequence, operator, ends, wide_sums, turned) for _ in range(2))
    y, kept = ahead.forward()
    dx, dw = back.backward(kept)
    for builder, views in ((ahead.builder, (y, *kept)), (back.builder, (dx, dw))):
        for view in views:
            builder.end_with(view)
    names = (
        tuple(name for view in kept for name in view.blocks(rank)) for rank in range(source.ranks)
    )
    programs = apply_in_turn(ahead.builder.program(), back.builder.program())
    return LinearPrograms(*programs, tuple(names), y.name, dx.name, dw.name)


@dataclass(frozen=True)
class _Lowering:
    """Builds one program of a linear operator."""

    builder: ProgramBuilder
    products: Products
    movement: Movement
    source: Layout
    output: Layout
    target: Layout

    @classmethod
    def of(
        cls,
        sequence: Sequence,
        operator: Linear,
        ends: tuple[Layout, Layout, Layout],
        wide_sums: bool,
        turned: bool,
    ) -> _Lowering:
        builder = ProgramBuilder(sequence.ranks)
        names = {tensor: tensor for tensor in ("O", "dO", "dI", "dW")}
        weights = frozenset(("W", "dW") if turned else ())
        products = Products(builder, sequence, operator, NAME, names, weights, wide_sums)
        return cls(builder, products, Movement(sequence), *ends)

    def _shape(self, tensor: str) -> tuple[int, ...]:
        return tuple(self.products.operator.size(dim) for dim in self.products.dims(tensor))

    def _cuts(self, tensor: str, layout: Layout) -> Cuts:
        return even(self._shape(tensor), layout.grid)

    def _begun(self, name: str, tensor: str, layout: Layout) -> View:
        """Declare an input of the program, in the blocks of a layout."""
        return _begun(self.builder, name, layout, self._shape(tensor))

    def _moved(self, view: View, tensor: str, way: Way, cuts: Cuts, name: str) -> View:
        check_divided(self._shape(tensor), Cells.of(way.source, way.target).grid, tensor)
        return moved(self.builder, view, way, cuts, name)

    @property
    def _home(self) -> Layout:
        """The layout of the weight, over its dims in the program."""
        home = resident_layout(self.movement, "forward", "W")
        return home.turned() if self.products.turned else home

    def _take_weight(self) -> None:
        weight = self._begun("weight", "W", self._home)
        view = reblocked(self.builder, weight, self.products.cuts("W"), "W")
        self.products.names["W"] = view.name

    def forward(self) -> tuple[View, list[View]]:
        """Append forward; returns the output, and the tensors that are kept for backward."""
        products, way = (
            self.products,
            Way(self.source, resident_layout(self.movement, "forward", "I")),
        )
        x = self._begun("x", "I", self.source)
        products.names["I"] = self._moved(x, "I", way, products.cuts("I"), "I").name
        self._take_weight()
        done = products.take_in("forward")
        initial = tuple(indices(blocks, "W") for blocks in done.initial or ())
        stays = held_after(done, "W") == initial
        kept = [
            View(products.names[tensor], products.cuts(tensor), held, ("R", "C"))
            for tensor in ("I", "W")[: 2 - stays]
            for held in [products.held(done.final or (), tensor)]
        ]
        made, cuts = products.made(done, "O"), self._cuts("O", self.target)
        return self._moved(made, "O", Way(self.output, self.target), cuts, "y"), kept

    def backward(self, kept: list[View]) -> tuple[View, View]:
        """Append backward and gradient; returns the gradients of input and weight."""
        builder, products = self.builder, self.products
        for tensor, view in zip("IW", kept, strict=False):
            products.names[tensor] = view.name
            builder.begin_with(builder.new(view.name, view.cuts, view.held, view.dims))
        if len(kept) == 1:
            self._take_weight()
        dy, way = self._begun("dy", "O", self.target), Way(self.target, self.output)
        products.names["dO"] = self._moved(dy, "dO", way, products.cuts("O"), "dO").name
        done = products.take_in("backward", "gradient")
        way = Way(resident_layout(self.movement, "backward", "dI", last=True), self.source)
        di, cuts = products.made(done, "dI"), self._cuts("I", self.source)
        dx = self._moved(di, "dI", way, cuts, "dx")
        home = self._cuts("W", self._home)
        return dx, reblocked(builder, products.made(done, "dW"), home, "dw")


def _begun(
    builder: ProgramBuilder, name: str, layout: Layout, shape: tuple[int, ...], wide: bool = False
) -> View:
    view = builder.new(name, even(shape, layout.grid), layout.held, ("R", "C"), wide)
    builder.begin_with(view)
    return view
