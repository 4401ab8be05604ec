"""State of a training step whose memory is followed: parameters, moments and gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import prod

from primepar.plan.layouts import padded_vocabulary, parameter_place
from primepar.plan.memory.lifetimes import Lifetimes, PlacedTensor
from primepar.plan.memory.linear import LinearHoldings, held
from primepar.plan.operator_layouts import movement_of, part
from primepar.plan.plan import Plan
from primepar.schedule.layout import Cells, Layout
from primepar.schedule.operators import Linear


def layer_of(name: str) -> int:
    """Layer of an operator or a parameter; -1 outside the layers."""
    return int(name.split(".")[1]) if name.startswith("blocks.") else -1


@dataclass
class StepMemory:
    """One training step: its parameters, and the gradients written so far.

    Layer `l` stands for `times[l]` more layers. Per element of a parameter, each of AdamW's two
    moments takes `moment` elements of the step's data type, and the copy of the parameter `copy`.
    """

    plan: Plan
    batch: int
    positions: int
    times: Mapping[int, int]
    moment: Fraction
    copy: Fraction
    parameters: dict[str, PlacedTensor] = field(default_factory=dict)
    gradients: dict[str, PlacedTensor] = field(default_factory=dict)
    _moments: dict[str, list[PlacedTensor]] = field(default_factory=dict)
    _copies: dict[str, PlacedTensor] = field(default_factory=dict)
    _known: dict[object, LinearHoldings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.events = Lifetimes(self.plan.ranks)
        for name, shape in self.plan.model.parameter_shapes.items():
            parameter, times = self._parameter(name, shape), 1 + self.times.get(layer_of(name), 0)
            self.parameters[name] = self.events.begin(parameter, times)
            moments = [self._sized(parameter, self.moment) for _ in range(2)]
            self._moments[name] = [self.events.begin(moment, times) for moment in moments]
            if self.copy:
                copy = self._sized(parameter, self.copy)
                self._copies[name] = self.events.begin(copy, times)

    @staticmethod
    def _sized(tensor: PlacedTensor, factor: Fraction) -> PlacedTensor:
        local_R = tensor.local_R * factor.numerator // factor.denominator
        return replace(tensor, size=int(tensor.size * factor), local_R=local_R)

    @property
    def rows(self) -> int:
        """Tokens of the step."""
        return self.batch * self.positions

    @cached_property
    def vocabulary(self) -> int:
        """The padded vocabulary."""
        return padded_vocabulary(self.plan)

    def rows_of(self, layout: Layout, numbers: int) -> PlacedTensor:
        """A tensor of `numbers` elements for each row, in the rows of a layout."""
        return PlacedTensor.in_layout(part(layout, (0,)), numbers * self.rows)

    def _parameter(self, name: str, shape: tuple[int, ...]) -> PlacedTensor:
        padded = self.vocabulary if name in ("embedding.token", "head.weight") else 0
        sizes = (
            padded if length == self.plan.model.vocabulary and padded else length
            for length in shape
        )
        parameter = PlacedTensor.in_layout(parameter_place(self.plan, name).layout, prod(sizes))
        operator = name.removesuffix(".weight")
        if self.plan.sequences.get(operator) and self.plan.operator(operator).kind == "linear":
            grid = self.plan.sequence(operator).grid
            parameter = replace(parameter, cells=Cells.even((grid["N"], grid["K"])))
        return parameter

    def linear(self, name: str, shape: Linear, is_copy: bool) -> LinearHoldings:
        """What a linear operator holds; equal operators are computed once."""
        key = shape, self.plan.sequences[name]
        if key not in self._known:
            self._known[key] = held(
                movement_of(str(self.plan.sequence(name)), True), shape, is_copy
            )
        return self._known[key]

    def update(self, name: str) -> None:
        """AdamW of a parameter: both new moments are written, and then the parameter.

        With a copy the new parameter is made of the new copy.
        """
        parameter, gradient = self.parameters[name], self.gradients[name]
        new = [
            self.events.make(replace(moment), moment, gradient) for moment in self._moments[name]
        ]
        if name in self._copies:
            copy = self._copies[name]
            new.append(self.events.make(replace(copy), copy, *new))
            new.append(self.events.make(replace(parameter), new[-1]))
        else:
            new.append(self.events.make(replace(parameter), parameter, *new))
        for tensor in new:
            self.events.keep(tensor)
