"""What the operators of a step share while it is lowered."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from primepar.plan.layouts import Ends, ParameterPlace, ends, padded_vocabulary, parameter_places
from primepar.plan.plan import Plan
from primepar.plan.step.draft import Cuts, Draft, Space, View
from primepar.schedule.layout import Layout


@dataclass
class Step:
    """One training step: its parameters, and the gradients found so far, each where it rests.

    A gradient is the whole sum on every rank that holds its block.
    """

    plan: Plan
    draft: Draft
    batch: int
    positions: int
    parameters: dict[str, View] = field(default_factory=dict)
    gradients: dict[str, View] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Tokens of the step."""
        return self.batch * self.positions

    @cached_property
    def vocabulary(self) -> int:
        """Rows of the token table and columns of the head, with the padding."""
        return padded_vocabulary(self.plan)

    @cached_property
    def places(self) -> dict[str, ParameterPlace]:
        """Where the parameters rest."""
        return parameter_places(self.plan)

    def ends(self, name: str) -> Ends:
        """Layouts of an operator's input and output."""
        return ends(self.plan, name)

    def space(self, layout: Layout, columns: int) -> Space:
        """Rows and columns of an activation in a layout, dims M and K."""
        return Space(layout, {"M": self.rows, "K": columns})

    def given(self, name: str, space: Space, *dims: str, fixed: int = 1) -> View:
        """A parameter that lies where `space` has it; a number among the dims is a fixed slice."""
        self.parameters[name] = self.draft.given(name, space, *dims, fixed=fixed)
        return self.parameters[name]

    def add_gradient(self, name: str, gradient: View) -> None:
        """Take every rank's part of a parameter's gradient, and sum the parts where they rest."""
        self.draft.all_reduce(gradient, self.places[name].summed)
        self.gradients[name] = gradient

    def update(self, name: str) -> None:
        """Lower AdamW of one parameter, and ask for the new one where the old one was.

        The first and the second moment, `<name>.m` and `<name>.v`, lie with the parameter, and so
        do the new ones. It goes element by element, so the blocks may be any.
        """
        draft, view = self.draft, self.parameters[name]
        dims = tuple("T" if dim.isdigit() else dim for dim in view.dims)
        parameter, gradient = replace(view, dims=dims), replace(self.gradients[name], dims=dims)
        grid = tuple(len(line) - 1 for line in view.cuts)
        sizes = [line[-1] for line in view.cuts]
        at = Space(Layout(grid, view.held), dict(zip(dims, sizes, strict=True)))

        def new(own: str, reads: list[View]) -> View:
            writes = replace(parameter, name=f"{own}.new").template
            made = draft.compute(f"{own}.update", at, reads, writes)
            draft.end_with(made)
            return made

        moments = [draft.given(f"{name}.{own}", at, *dims) for own in ("m", "v")]
        new(name, [parameter, *(new(moment.name, [moment, gradient]) for moment in moments)])


class Lowered(Protocol):
    """One operator of a step: what it appends to the draft.

    `takes` are the cuts of its inputs, which are in the layout of its input.
    """

    takes: Cuts

    def forward(self, *inputs: View) -> View:
        """Lower forward; returns the output, in the blocks of its layout."""
        ...

    def backward(self, dy: Any) -> tuple[View, ...]:
        """Lower backward, of the gradient of the output; returns that of each input.

        The loss has no such gradient, and gets None.
        """
        ...
