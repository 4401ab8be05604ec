"""The options of a search: for each operator its sequences, with their costs and layouts.

Operators of one kind and size share their options, so that many layers take no more work than two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from primepar.models.config import ModelConfig
from primepar.models.graph import Operator
from primepar.partition.by_dimension import ByInput
from primepar.partition.sequence_parallel import SequenceRow
from primepar.plan.cost.candidate import Candidate, Spread, element_spread
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.linear import Cost, Training, cost_key, linear_cost
from primepar.plan.cost.local_operators import (
    LocalOperatorCost,
    Lookup,
    embedding_cost,
    padded,
)
from primepar.plan.search.sequence_space import SequenceSpace, SpaceName
from primepar.schedule.operators import Linear

Numbers: TypeAlias = NDArray[np.int64]
Vector: TypeAlias = NDArray[np.float64]
Matrix: TypeAlias = NDArray[np.float64]
Choices = tuple[int, ...]
"""An option of every operator, in their order."""
SUMMED = ByInput, SequenceRow
"""Primitives that cut the vocabulary of the embedding, whose partial rows are summed."""
Candidates: TypeAlias = Callable[[Operator], Several[Candidate]]
"""The sequences to choose from, for each operator."""


@dataclass(frozen=True, eq=False)
class Options:
    """Sequences of an operator: the terms of the `Cost` of each, and the numbers of its layouts."""

    candidates: tuple[Candidate, ...]
    terms: Mapping[str, Vector]
    """Name of a term of `Cost` -> seconds, or bytes, of every option."""
    takes: Numbers
    leaves: Numbers
    leaves_gradient: Numbers
    weights: Numbers
    """Layout of a tied head's weight, and of the table, as (vocabulary, hidden); 0 for others."""

    def __len__(self) -> int:
        return len(self.candidates)

    @cached_property
    def seconds(self) -> Vector:
        """Seconds of a training step."""
        terms = self.terms
        return terms["compute"] + terms["communication"] + terms["reduction"] + terms["update"]

    @cached_property
    def kept(self) -> Vector:
        """Bytes of a device that are kept through the step."""
        terms = self.terms
        return terms["parameters"] + terms["gradients"] + terms["states"] + terms["stash"]

    @property
    def running(self) -> Vector:
        """Bytes of a device that an operator holds in addition while it runs."""
        return self.terms["running"]

    def only(self, numbers: Iterable[int]) -> Options:
        """Some of the options."""
        kept = np.fromiter(numbers, int)
        return Options(
            tuple(self.candidates[number] for number in kept),
            {term: amounts[kept] for term, amounts in self.terms.items()},
            self.takes[kept],
            self.leaves[kept],
            self.leaves_gradient[kept],
            self.weights[kept],
        )

    def cheapest(self, objective: Vector) -> Options:
        """Of the options with equal layouts the one with the least `objective`.

        No optimum is lost: options with equal layouts cost the same on every edge, so that one can
        replace another in any plan.
        """
        least: dict[tuple[int, ...], int] = {}
        for number, key in enumerate(self._ends):
            if key not in least or objective[number] < objective[least[key]]:
                least[key] = number
        return self.only(least.values())

    def undominated(self, objective: Vector) -> Options:
        """Of the options with equal layouts those that no other dominates in cost and memory."""
        sums = np.stack([objective, self.kept, self.running], axis=1)
        by_layouts: dict[tuple[int, ...], list[int]] = {}
        for number in np.lexsort(sums.T[::-1]).tolist():
            kept = by_layouts.setdefault(self._ends[number], [])
            if not (sums[kept] <= sums[number]).all(axis=1).any():
                kept.append(number)
        return self.only(number for kept in by_layouts.values() for number in kept)

    @cached_property
    def _ends(self) -> list[tuple[int, ...]]:
        """The layouts of every option, of inputs, output, gradients and weights."""
        ends = self.takes, self.leaves, self.leaves_gradient, self.weights
        return list(zip(*(layouts.tolist() for layouts in ends), strict=True))


@dataclass
class Catalogue:
    """Options of the operators of a model, out of the sequences of `candidates`."""

    model: ModelConfig
    training: Training
    candidates: Candidates
    layouts: Layouts
    _known: dict[object, Options] = field(default_factory=dict)
    _placed: dict[Candidate, _Placed] = field(default_factory=dict)

    @classmethod
    def whole(
        cls, model: ModelConfig, training: Training, space: SpaceName,
        candidates: Candidates | None = None,
    ) -> Self:  # fmt: skip
        """The catalogue of all sequences of a space, or of some."""
        links = training.links
        sequences = candidates or SequenceSpace.whole(space, links.bits).of
        return cls(model, training, sequences, Layouts(links))

    def like(self, model: ModelConfig, training: Training) -> Self:
        """The catalogue of steps of another size on the same devices; layouts are shared."""
        return type(self)(model, training, self.candidates, self.layouts, _placed=self._placed)

    def options(self, operator: Operator) -> Options:
        """Options of an operator: the sequences that divide its sizes and the batch."""
        key = kind_of(operator)
        if key not in self._known:
            self._known[key] = self.priced(operator, self.candidates(operator))
        return self._known[key]

    def priced(self, operator: Operator, candidates: Several[Candidate]) -> Options:
        """Those of some sequences that divide an operator's sizes and the batch."""
        make = {"linear": self._linear, "embedding": self._embedding}
        places = self._places(candidates)
        return _options(make.get(operator.kind, self._local)(operator, places))

    def _places(self, candidates: Several[Candidate]) -> Iterator[_Placed]:
        """Sequences with what does not depend on the sizes of an operator."""
        for candidate in candidates:
            if candidate not in self._placed:
                self._placed[candidate] = self._place(candidate)
            yield self._placed[candidate]

    def _place(self, candidate: Candidate) -> _Placed:
        spread = candidate.spread
        ends = [tensor for tensor in ("I", "O", "dI") if tensor in spread]
        numbers = [self.layouts.number(spread[tensor]) for tensor in ends]
        rows, inputs = spread[ends[0]].grid
        key = cost_key(self.training.links, candidate)
        return _Placed(candidate, key, (rows, inputs, spread["O"].grid[1]), tuple(numbers))

    def _linear(self, operator: Operator, places: Iterator[_Placed]) -> Iterator[_Option]:
        head, training = operator.name == "head", self.training
        biased = f"{operator.name}.bias" in self.model.parameter_shapes
        costs: dict[object, Cost] = {}
        for candidate, key, (rows, inputs, columns), numbers in places:
            if training.rows % rows or operator.N % inputs or (operator.K % columns and not head):
                continue
            if key not in costs:
                tied = head and self.model.tied
                # Several matrices side by side count as one with as many elements.
                inner = operator.N if operator.weights is None else operator.weights / operator.K
                shape = Linear(M=training.rows, N=round(inner), K=padded(operator.K, columns))
                costs[key] = linear_cost(training, shape, candidate, tied)
            weight = self._table(candidate.spread["W"].turned()) if head else 0
            cost = self._biased(operator.K, costs[key], numbers[1]) if biased else costs[key]
            yield _Option(candidate, cost, (*numbers, weight))

    def _table(self, spread: Spread) -> int | None:
        """The number of a table's layout; 0 where no edge depends on it."""
        number = self.layouts.number(spread)
        return number if number is None or self.model.tied else 0

    def _biased(self, features: int, cost: Cost, leaves: int | None) -> Cost:
        """The cost with the all-reduce of the bias gradient over devices that share columns.

        Where the bias is added, the output is there without it and with it.
        """
        if leaves is None:
            return cost
        layouts = self.layouts
        columns, held = (
            features / layouts.slices(leaves, 1),
            layouts.others(layouts.line(leaves, 1)),
        )
        bias = Cost(**self.training.parameter(columns, features, layouts.line(leaves, 0), held))
        both = 2 * layouts.share(leaves) * self.training.rows * features * self.training.item
        total = Cost(*(before + more for before, more in zip(cost, bias, strict=True)))
        return total._replace(running=max(cost.running, both))

    def _local(self, operator: Operator, places: Iterator[_Placed]) -> Iterator[_Option]:
        first: dict[int | None, Candidate] = {}
        for candidate, _, _, (number,) in places:
            first.setdefault(number, candidate)
        for number, candidate in first.items():
            if number is not None and self._divides(operator, number):
                cost = LocalOperatorCost(self.training, self.model, self.layouts, operator, number)
                yield _Option(candidate, cost.cost, (number, number, number, 0))

    def _divides(self, operator: Operator, layout: int) -> bool:
        rows, columns = (self.layouts.slices(layout, dim) for dim in (0, 1))
        model, batch = self.model, self.training.batch
        if operator.kind == "attention":
            whole = batch % rows == 0 or rows % batch == 0
            cut = [model.heads, model.kv_heads]
        else:
            whole = True
            cut = {"activation": [model.ffn], "loss": []}.get(operator.kind, [operator.K])
        if operator.kind == "experts" and columns > 1:
            return False  # a router needs whole rows
        return whole and self.training.rows % rows == 0 and not any(n % columns for n in cut)

    def _embedding(self, operator: Operator, places: Iterator[_Placed]) -> Iterator[_Option]:
        costs: dict[Lookup, Cost] = {}
        for candidate, _, _, (leaves,) in places:
            if leaves is None or not self._divides(operator, leaves):
                continue
            rows_of_table, rows = _looked_up(candidate)
            table, looked_up = self._table(rows_of_table), self.layouts.number(rows)
            if table is None or looked_up is None:
                continue
            bits = tuple(bit for element, bits in candidate.places for bit in bits
                         if isinstance(element.primitive, SUMMED))  # fmt: skip
            lookup = Lookup(leaves, looked_up, bits)
            if lookup not in costs:
                costs[lookup] = embedding_cost(self.training, self.model, self.layouts, lookup)
            yield _Option(candidate, costs[lookup], (leaves, leaves, leaves, table))


class _Placed(NamedTuple):
    """A sequence with the key of its cost, its slices of M, N and K, and its layouts."""

    candidate: Candidate
    cost_key: tuple[object, ...]
    slices: tuple[int, int, int]
    layouts: tuple[int | None, ...]


@dataclass(frozen=True)
class _Option:
    candidate: Candidate
    cost: Cost
    layouts: tuple[int | None, ...]
    """Takes, leaves, leaves gradient, weights."""


def kind_of(operator: Operator) -> tuple[object, ...]:
    """The key under which operators share their options: all but the layer."""
    return operator.kind, operator.N, operator.K, operator.name.rpartition(".")[2]


def _options(options: Iterable[_Option]) -> Options:
    fitting = [option for option in options if None not in option.layouts]
    costs = np.array([option.cost for option in fitting], float).reshape(-1, len(Cost._fields))
    numbers = np.array([option.layouts for option in fitting], int).reshape(-1, 4)
    takes, leaves, gradient, weights = numbers.T
    candidates = tuple(option.candidate for option in fitting)
    terms = dict(zip(Cost._fields, costs.T, strict=True))
    return Options(candidates, terms, takes, leaves, gradient, weights)


def _looked_up(candidate: Candidate) -> tuple[Spread, Spread]:
    """Layouts of the embedding's table (vocabulary, hidden), and of the rows that it looks up.

    Where the vocabulary is cut, the rows are those before their sum.
    """
    table, rows = Spread.whole(), Spread.whole()
    for element in candidate.elements:
        output = element_spread(element, "O")
        uncut = Spread.whole(len(element.devices))
        if isinstance(element.primitive, SUMMED):
            table = table.then(Spread(element_spread(element, "W").rows, uncut.columns))
            rows = rows.then(uncut)
        else:
            table, rows = table.then(Spread(uncut.rows, output.columns)), rows.then(output)
    return table, rows
