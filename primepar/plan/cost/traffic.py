"""The elements that every device sends in a training step, predicted from movement and layouts.

The times of a search are those of the busiest port of each level. Here the same movement is counted
device by device, as emulator and executor do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import NamedTuple

from primepar.models.graph import Operator
from primepar.plan.cluster import BYTES
from primepar.plan.cost.sent_elements import (
    TENSORS,
    Amounts,
    all_reduced,
    gathered,
    rows,
    sent_by_sequence,
    shares,
    summed_in_parts,
    total,
)
from primepar.plan.layouts import (
    Edge,
    edges,
    ends,
    gradient_groups,
    lookup,
    padded_vocabulary,
    parameter_place,
    summed_rows,
)
from primepar.plan.operator_layouts import part, sequence_lines
from primepar.plan.plan import Plan
from primepar.schedule.layout import Layout
from primepar.schedule.operators import OUTPUTS, Linear, Phase, is_wide_sum
from primepar.schedule.redistribute import sent as redistributed

OPERANDS = frozenset(TENSORS) - OUTPUTS
SWEEPS: tuple[tuple[Phase, ...], ...] = (("forward",), ("backward", "gradient"))
"""Phases of a linear operator that a training step runs as one sweep."""


@dataclass(frozen=True)
class PredictedTraffic:
    """Elements that every rank sends in a training step.

    `operators` has what each operator sends itself, with the reductions of its gradients. `edges`
    has the redistribution from the first operator to the second, and of the gradient back.
    """

    operators: Mapping[str, Amounts]
    edges: Mapping[tuple[str, str], Amounts]

    norm: Amounts
    """Sums of squares, for the norm of the gradient."""

    wide: Mapping[str, Amounts]
    """By operator, what of it is float32 at least: sums that are not complete, and statistics."""

    @cached_property
    def total(self) -> Amounts:
        """Elements of all operators and edges together, and of the norm."""
        return total([*self.operators.values(), *self.edges.values(), self.norm])

    def bytes(self, dtype: str) -> tuple[int, ...]:
        """Bytes that every rank sends in a data type, rounded up."""
        item = BYTES[dtype]
        more = max(BYTES["float32"] - item, 0)
        pairs = zip(self.total, total([self.norm, *self.wide.values()]), strict=True)
        return tuple(ceil(elements * item + wide * more) for elements, wide in pairs)


def traffic(plan: Plan, batch: int, positions: int, masters: bool = False) -> PredictedTraffic:
    """What a training step of `batch` sequences of `positions` tokens sends.

    With `masters` wide copies of the parameters are updated, and no weight returns after backward.
    Raises `PlanError` for a batch that the plan cannot cut, or a plan with a pipeline.
    """
    plan.check_without_pipeline()
    plan.check_batch(batch, positions)
    step = _Step(plan, batch, positions, masters)
    by_operator = {item.name: step.operator(item) for item in plan.operators}
    by_edge = {(item.producer, item.consumer): step.edge(item) for item in edges(plan)}
    numbers = [Fraction(len(gradient_groups(plan)))] * plan.ranks
    norm = all_reduced((tuple(range(plan.ranks)),), numbers)
    return PredictedTraffic(
        {name: sent.elements for name, sent in by_operator.items()},
        by_edge,
        norm,
        {name: sent.wide for name, sent in by_operator.items()},
    )


class _Sent(NamedTuple):
    """What an operator sends, and how much of it is wide."""

    elements: Amounts
    wide: Amounts


Sums = Iterator[tuple[Amounts, bool]]
"""Elements of each kind of message, and whether they are wide."""


@dataclass
class _Step:
    """Traffic of one training step; equal layers are counted once."""

    plan: Plan
    batch: int
    positions: int
    masters: bool
    _known: dict[object, Amounts] = field(default_factory=dict)
    _known_operators: dict[object, _Sent] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.batch * self.positions

    @cached_property
    def vocabulary(self) -> int:
        return padded_vocabulary(self.plan)

    def edge(self, edge: Edge) -> Amounts:
        """The redistribution of the tensor to the consumer, and of its gradient back."""
        size = (self.rows if edge.rows is None else edge.rows) * edge.features
        operators = (self.plan.operator(name) for name in (edge.producer, edge.consumer))
        key = size, *((way.kind, self.plan.sequences[way.name]) for way in operators)
        if key not in self._known:
            redistributions = edge.forward, edge.backward
            self._known[key] = total(
                self._way(way.source, way.target, size) for way in redistributions
            )
        return self._known[key]

    def _way(self, source: Layout, target: Layout, size: int) -> Amounts:
        return tuple(size * share for share in redistributed(source, target))

    def operator(self, operator: Operator) -> _Sent:
        """What an operator sends in all phases, and to reduce the gradients of its parameters."""
        name = (
            operator.name.split(".")[-1] if operator.name.startswith("blocks.") else operator.name
        )
        key = name, self.plan.sequences[operator.name]
        if key not in self._known_operators:
            pairs: list[tuple[Amounts, bool]] = list(getattr(self, f"_{operator.kind}")(operator))
            nothing = (Fraction(0),) * self.plan.ranks
            self._known_operators[key] = _Sent(
                total([nothing, *(sent for sent, _ in pairs)]),
                total([nothing, *(sent for sent, wide in pairs if wide)]),
            )
        return self._known_operators[key]

    def _gradients(self, *parameters: tuple[str, int]) -> Sums:
        """All-reduces of gradients over the ranks that replicate parameters: names and sizes."""
        for name, elements in parameters:
            if name in self.plan.model.parameter_shapes:
                place = parameter_place(self.plan, name)
                yield all_reduced(place.summed, shares(place.layout, elements)), True

    def _linear(self, operator: Operator) -> Sums:
        columns = self.vocabulary if operator.name == "head" else operator.K
        shape = Linear(M=self.rows, N=operator.N, K=columns)
        sequence = self.plan.sequence(operator.name)
        wide_sums = frozenset(name for name in OUTPUTS if is_wide_sum(name, sequence.steps))
        for phases in SWEEPS:
            for tensors, wide in ((OPERANDS | OUTPUTS - wide_sums, False), (wide_sums, True)):
                yield sent_by_sequence(sequence, shape, phases, tensors, self.masters), wide
        yield from self._gradients((f"{operator.name}.bias", operator.K))

    def _norm(self, operator: Operator) -> Sums:
        """Moments of the rows, or mean squares, in forward, and two sums or one in backward."""
        name, layout = operator.name, ends(self.plan, operator.name).output
        centred = f"{name}.bias" in self.plan.model.parameter_shapes
        sharing, numbers = layout.peers_along(1), rows(layout, (1 + centred) * self.rows)
        yield (gathered if centred else all_reduced)(sharing, numbers), True
        yield all_reduced(sharing, numbers), True
        yield from self._gradients((f"{name}.weight", operator.K), (f"{name}.bias", operator.K))

    def _attention(self, operator: Operator) -> Sums:
        """The all-gather of keys and values, and the reduce-scatter of their gradients."""
        model, layout = self.plan.model, ends(self.plan, operator.name).output
        keys = shares(layout, self.rows * 2 * model.kv_heads * model.head_dim)
        lines = sequence_lines(layout, self.batch)
        yield gathered(lines, [2 * elements for elements in keys]), False

    def _activation(self, _: Operator) -> Sums:
        yield from ()

    def _add(self, _: Operator) -> Sums:
        yield from ()

    def _embedding(self, operator: Operator) -> Sums:
        """Partial rows are reduced in parts and redistributed; gradients come back whole."""
        plan, columns, output = self.plan, operator.K, ends(self.plan, operator.name).output
        whole, kept = lookup(plan), summed_rows(plan)
        yield summed_in_parts(whole.peers_along(1), kept, self.rows * columns), False
        yield self._way(kept, output, self.rows * columns), False
        yield self._way(output, part(whole, (0, 2)), self.rows * columns), False
        yield from self._gradients(
            ("embedding.token", self.vocabulary * columns),
            ("embedding.position", plan.model.context * columns),
        )

    def _loss(self, operator: Operator) -> Sums:
        """All-reduces of each row's maximum, sum and target, and of the mean."""
        layout = ends(self.plan, operator.name).input
        yield all_reduced(layout.peers_along(1), rows(layout, 3 * self.rows)), True
        yield all_reduced(layout.peers_along(0), [Fraction(1)] * self.plan.ranks), True
