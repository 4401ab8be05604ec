"""What every device sends in a training step of a plan: predicted from movement and layouts.

The time of a search looks at the busiest port of each level; here the same movement is read device
by device, as emulator and executor count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

from primepar.models.graph import Operator
from primepar.plan.cluster import BYTES
from primepar.plan.cost.sent_elements import (
    Amounts,
    all_reduced,
    gathered,
    moved,
    rows,
    shares,
    summed_in_parts,
    total,
)
from primepar.plan.layouts import (
    Edge,
    edges,
    ends,
    gradients_alike,
    lookup,
    padded_vocabulary,
    parameter_place,
    summed_rows,
)
from primepar.plan.operator_layouts import movement_of, part, sequence_lines
from primepar.plan.plan import Plan
from primepar.schedule.layout import Layout
from primepar.schedule.operators import Linear, Phase
from primepar.schedule.redistribute import sent as redistributed

SWEEPS: tuple[tuple[Phase, ...], ...] = (("forward",), ("backward", "gradient"))
"""Phases of a linear operator that a step runs on their own."""


@dataclass(frozen=True)
class PredictedTraffic:
    """Elements that leave every rank in a step.

    `operators` has what each one sends itself, with the sums of its gradients; `edges` what goes
    from the first operator to the second, and the gradient back.
    """

    operators: Mapping[str, Amounts]
    edges: Mapping[tuple[str, str], Amounts]

    norm: Amounts
    """For the norm of the gradient, a few numbers."""

    @cached_property
    def total(self) -> Amounts:
        """Of all operators and edges together, and for the norm."""
        return total([*self.operators.values(), *self.edges.values(), self.norm])

    def bytes(self, dtype: str) -> tuple[int, ...]:
        """What leaves every rank in a data type, in whole bytes, a part of one being one."""
        return tuple(-(-each.numerator * BYTES[dtype] // each.denominator) for each in self.total)


def traffic(plan: Plan, batch: int, positions: int) -> PredictedTraffic:
    """What a step of `batch` sequences of `positions` tokens sends.

    Raises `PlanError` for a batch that the plan does not divide.
    """
    plan.check_batch(batch, positions)
    step = _Step(plan, batch, positions)
    own = {each.name: step.operator(each) for each in plan.operators}
    between = {(each.producer, each.consumer): step.edge(each) for each in edges(plan)}
    numbers = [Fraction(len(gradients_alike(plan)))] * plan.ranks
    return PredictedTraffic(own, between, all_reduced((tuple(range(plan.ranks)),), numbers))


@dataclass
class _Step:
    """One step while its traffic is counted; layers that are alike are counted once."""

    plan: Plan
    batch: int
    positions: int
    _known: dict[object, Amounts] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.batch * self.positions

    @cached_property
    def vocabulary(self) -> int:
        return padded_vocabulary(self.plan)

    def edge(self, edge: Edge) -> Amounts:
        """The tensor to the consumer, and the gradient back."""
        size = (self.rows if edge.rows is None else edge.rows) * edge.features
        operators = (self.plan.operator(name) for name in (edge.producer, edge.consumer))
        key = size, *((each.kind, self.plan.sequences[each.name]) for each in operators)
        if key not in self._known:
            ways = edge.forward, edge.backward
            self._known[key] = total(self._way(each.source, each.target, size) for each in ways)
        return self._known[key]

    def _way(self, source: Layout, target: Layout, size: int) -> Amounts:
        return tuple(size * share for share in redistributed(source, target))

    def operator(self, operator: Operator) -> Amounts:
        """What an operator sends in all phases, and to sum the gradients of its parameters."""
        own = operator.name.split(".")[-1] if operator.name.startswith("blocks.") else operator.name
        key = own, self.plan.sequences[operator.name]
        if key not in self._known:
            sent: Iterator[Amounts] = getattr(self, f"_{operator.kind}")(operator)
            self._known[key] = total([(Fraction(0),) * self.plan.ranks, *sent])
        return self._known[key]

    def _gradients(self, *parameters: tuple[str, int]) -> Iterator[Amounts]:
        """Sums of gradients over the ranks that share a parameter of so many elements."""
        for name, elements in parameters:
            if name in self.plan.model.parameter_shapes:
                place = parameter_place(self.plan, name)
                yield all_reduced(place.summed, shares(place.layout, elements))

    def _linear(self, operator: Operator) -> Iterator[Amounts]:
        columns = self.vocabulary if operator.name == "head" else operator.K
        shape = Linear(M=self.rows, N=operator.N, K=columns)
        movement = movement_of(str(self.plan.sequence(operator.name)), True)
        for phases in SWEEPS:
            yield moved(movement, shape, phases)
        yield from self._gradients((f"{operator.name}.bias", operator.K))

    def _norm(self, operator: Operator) -> Iterator[Amounts]:
        """Means and mean squares of the rows, and both sums of backward at once."""
        name, layout = operator.name, ends(self.plan, operator.name).output
        means = 1 + (f"{name}.bias" in self.plan.model.parameter_shapes)
        yield all_reduced(layout.peers_along(1), rows(layout, 2 * means * self.rows))
        yield from self._gradients((f"{name}.weight", operator.K), (f"{name}.bias", operator.K))

    def _attention(self, operator: Operator) -> Iterator[Amounts]:
        """Keys and values of a sequence gathered, and their gradients scattered."""
        model, layout = self.plan.model, ends(self.plan, operator.name).output
        keys = shares(layout, self.rows * 2 * model.kv_heads * model.head_dim)
        yield gathered(sequence_lines(layout, self.batch), [2 * own for own in keys])

    def _activation(self, _: Operator) -> Iterator[Amounts]:
        yield from ()

    def _add(self, _: Operator) -> Iterator[Amounts]:
        yield from ()

    def _embedding(self, operator: Operator) -> Iterator[Amounts]:
        """Partial rows summed in parts, which then go to the output; gradients go back whole."""
        plan, columns, output = self.plan, operator.K, ends(self.plan, operator.name).output
        whole, kept = lookup(plan), summed_rows(plan)
        yield summed_in_parts(whole.peers_along(1), kept, self.rows * columns)
        yield self._way(kept, output, self.rows * columns)
        yield self._way(output, part(whole, (0, 2)), self.rows * columns)
        yield from self._gradients(
            ("embedding.token", self.vocabulary * columns),
            ("embedding.position", plan.model.context * columns),
        )

    def _loss(self, operator: Operator) -> Iterator[Amounts]:
        """The largest of each row, its sum and its target; and the mean, one number."""
        layout = ends(self.plan, operator.name).input
        yield all_reduced(layout.peers_along(1), rows(layout, 3 * self.rows))
        yield all_reduced(layout.peers_along(0), [Fraction(1)] * self.plan.ranks)
