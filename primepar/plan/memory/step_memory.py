"""What the operators of a step share while its memory is followed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from math import prod

from primepar.plan.layouts import padded_vocabulary, parameter_place
from primepar.plan.memory.lifetimes import Lies, Lifetimes
from primepar.plan.memory.linear import LinearHoldings, held
from primepar.plan.operator_layouts import movement_of, part
from primepar.plan.plan import Plan
from primepar.schedule.layout import Cells, Layout
from primepar.schedule.operators import Linear


def layer_of(name: str) -> int:
    """Layer of an operator or a parameter; -1 for those of none."""
    return int(name.split(".")[1]) if name.startswith("blocks.") else -1


@dataclass
class StepMemory:
    """One training step: its parameters, and the gradients found so far.

    Layer `l` stands for `times[l]` layers more. A moment of AdamW takes `moment` elements of the
    step's data type for each of a parameter's, and a copy of the parameter beside it `copy`.
    """

    plan: Plan
    batch: int
    positions: int
    times: Mapping[int, int]
    moment: Fraction
    copy: Fraction
    parameters: dict[str, Lies] = field(default_factory=dict)
    gradients: dict[str, Lies] = field(default_factory=dict)
    _moments: dict[str, list[Lies]] = field(default_factory=dict)
    _known: dict[object, LinearHoldings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.events = Lifetimes(self.plan.ranks)
        for name, shape in self.plan.model.parameter_shapes.items():
            own, times = self._parameter(name, shape), 1 + self.times.get(layer_of(name), 0)
            self.parameters[name] = self.events.begin(own, times)
            moments = [self._sized(own, self.moment) for _ in range(2)]
            self._moments[name] = [self.events.begin(each, times) for each in moments]
            self.events.begin(self._sized(own, self.copy), times)

    @staticmethod
    def _sized(own: Lies, each: Fraction) -> Lies:
        own_R = own.own_R * each.numerator // each.denominator
        return replace(own, size=int(own.size * each), own_R=own_R)

    @property
    def rows(self) -> int:
        """Tokens of the step."""
        return self.batch * self.positions

    @cached_property
    def vocabulary(self) -> int:
        """The vocabulary with its padding."""
        return padded_vocabulary(self.plan)

    def rows_of(self, layout: Layout, numbers: int) -> Lies:
        """So many numbers for each row, in the rows of a layout."""
        return Lies.in_layout(part(layout, (0,)), numbers * self.rows)

    def _parameter(self, name: str, shape: tuple[int, ...]) -> Lies:
        padded = self.vocabulary if name in ("embedding.token", "head.weight") else 0
        sizes = (
            padded if each == self.plan.model.vocabulary and padded else each for each in shape
        )
        own = Lies.in_layout(parameter_place(self.plan, name).layout, prod(sizes))
        operator = name.removesuffix(".weight")
        if self.plan.sequences.get(operator) and self.plan.operator(operator).kind == "linear":
            grid = self.plan.sequence(operator).grid
            own = replace(own, cells=Cells.even((grid["N"], grid["K"])))
        return own

    def linear(self, name: str, shape: Linear, lent: bool) -> LinearHoldings:
        """What a linear operator holds; one that is alike is looked at once."""
        key = shape, self.plan.sequences[name]
        if key not in self._known:
            self._known[key] = held(movement_of(str(self.plan.sequence(name)), True), shape, lent)
        return self._known[key]

    def update(self, name: str) -> None:
        """AdamW of a parameter: both moments anew, and then the parameter."""
        parameter, gradient = self.parameters[name], self.gradients[name]
        new = [self.events.make(replace(own), own, gradient) for own in self._moments[name]]
        new.append(self.events.make(replace(parameter), parameter, *new))
        for each in new:
            self.events.keep(each)
