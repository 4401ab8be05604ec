"""The state that the operators of a step share during lowering."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from primepar.operators.builder import Cuts, IterationSpace, ProgramBuilder, View
from primepar.operators.optimizers import Optimizer
from primepar.operators.shards import own_parts
from primepar.plan.layouts import ParameterPlace, ends, padded_vocabulary, parameter_places
from primepar.plan.operator_layouts import Ends
from primepar.plan.plan import Plan
from primepar.schedule.layout import Layout

BEFORE, AFTER = "before", "after"
"""Sections that run once in a step."""


@dataclass
class StepContext:
    """One training step: its parameters and the gradients so far, in their resident layouts.

    A gradient is the full sum on every rank that holds its block. With `repeats` the context is one
    micro-batch of `batch` sequences. Its instructions run once for each, except for those that
    `before` and `after` put before the first and after the last micro-batch, and those that
    `at_last` puts into the last. Then every
    micro-batch leaves the parameters in their layouts, and adds to the gradients.
    """

    plan: Plan
    builder: ProgramBuilder
    batch: int
    positions: int
    trains: bool = True
    """Whether a backward follows; if not, forward moves only copies of the parameters."""
    optimizer: Optimizer = "adamw"
    wide_sums: bool = False
    """Whether sums of linear operators are wide until they are complete."""
    masters: bool = False
    """Whether wide copies of the parameters are updated, so that backward reads these last."""
    skips: bool = False
    """Whether nothing is updated where the norm of the gradient is not finite."""
    shards: bool = False
    """Whether every rank updates its shards of the parameters alone."""
    repeats: bool = False
    splits: bool = False
    """Whether the products of weight gradients have a section of their own."""
    parameters: dict[str, View] = field(default_factory=dict)
    gradients: dict[str, View] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Tokens of the step, or of the micro-batch."""
        return self.batch * self.positions

    @property
    def all_rows(self) -> int:
        """Tokens of all micro-batches."""
        return self.rows * (self.plan.micro_batches if self.repeats else 1)

    @cached_property
    def vocabulary(self) -> int:
        """Rows of the token table and columns of the head, with the padding."""
        return padded_vocabulary(self.plan)

    @cached_property
    def places(self) -> dict[str, ParameterPlace]:
        """The resident layouts of the parameters."""
        return parameter_places(self.plan)

    def before(self) -> AbstractContextManager[None]:
        """Append what runs once, before the first micro-batch."""
        return self.builder.section(BEFORE) if self.repeats else nullcontext()

    def at_last(self) -> AbstractContextManager[None]:
        """Append what runs here in the last micro-batch alone, the reduction of a sum over all."""
        return self.builder.last_time() if self.repeats else nullcontext()

    def after(self) -> AbstractContextManager[None]:
        """Append what runs once, after the last micro-batch."""
        return self.builder.section(AFTER) if self.repeats else nullcontext()

    def weight_gradients(self) -> AbstractContextManager[None]:
        """Append products of weight gradients, which no later backward needs."""
        return self.builder.section("W") if self.splits else nullcontext()

    def ends(self, name: str) -> Ends:
        """Return the layouts of an operator's input and output."""
        return ends(self.plan, name)

    def space(self, layout: Layout, columns: int) -> IterationSpace:
        """Return the iteration space over rows (M) and columns (K) of an activation."""
        return IterationSpace(layout, {"M": self.rows, "K": columns})

    def given(self, name: str, space: IterationSpace, *dims: str, fixed: int = 1) -> View:
        """Declare a parameter in the layout of `space`; a number in `dims` is a fixed slice."""
        self.parameters[name] = self.builder.given(name, space, *dims, fixed=fixed)
        return self.parameters[name]

    def own_parts(self, name: str, view: View) -> View:
        """Return this rank's shards of a view with the blocks of a parameter.

        In a step without shards the view is returned unchanged.
        """
        if not self.shards:
            return view
        return own_parts(self.builder, self.parameters[name], view, f"{view.name}.own")

    def add_gradient(
        self,
        name: str,
        kernel: str,
        space: IterationSpace,
        reads: list[View],
        dims: str = "K",
        fixed: int = 1,
    ) -> None:
        """Lower every rank's part of a parameter's gradient, all-reduced over its replicas.

        `dims` are those of the parameter; a number is a fixed slice of `fixed` elements. The sum
        over micro-batches is all-reduced once.
        """
        writes = f"{name}.grad[{dims}]"
        gradient = self.builder.compute(
            name, kernel, space, reads, writes, fixed=fixed, wide=True
        )  # fmt: skip
        with self.at_last():
            self.builder.all_reduce(gradient, self.places[name].summed)
        self.gradients[name] = gradient


class OperatorLowering(Protocol):
    """One operator of a step, which appends its instructions to the builder.

    `takes` are the cuts of its inputs; they have the operator's input layout.
    """

    takes: Cuts

    def forward(self, *inputs: View) -> View:
        """Lower forward; returns the output, in the blocks of its layout."""
        ...

    def backward(self, dy: Any) -> tuple[View, ...]:
        """Lower backward from the gradient of the output; returns the gradient of each input.

        The loss gets None.
        """
        ...
