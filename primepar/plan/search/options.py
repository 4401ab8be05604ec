"""What a search chooses from: for each operator its sequences, with their costs and layouts.

Operators of one kind and size share their options, so that a model of many layers costs no more
than one of two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from primepar.models.config import ModelConfig
from primepar.models.graph import Operator
from primepar.partition.by_dimension import ByInput, ByOutput
from primepar.plan.cost.device_slices import Spread, element_spread
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.linear import Cost, Training, alike, linear_cost
from primepar.plan.cost.local_operators import LocalOperatorCost, embedding_cost, padded
from primepar.plan.search.sequence_space import Candidate, SequenceSpace, SpaceName
from primepar.schedule.operators import Linear
from primepar.schedule.primitive import Primitive

Numbers = NDArray[np.int64]
Vector = NDArray[np.float64]
Candidates: TypeAlias = Callable[[Operator], Several[Candidate]]
"""Sequences to choose from, of each operator."""


@dataclass(frozen=True, eq=False)
class Options:
    """Sequences of an operator: cost of each, and the numbers of its layouts.

    `seconds` is of a training step, `kept` and `running` are bytes of a device as in `Cost`.
    """

    candidates: tuple[Candidate, ...]
    seconds: Vector
    kept: Vector
    running: Vector
    takes: Numbers
    leaves: Numbers
    leaves_gradient: Numbers
    weights: Numbers
    """Where the weight of the head rests, or the table, as (vocabulary, hidden); 0 for others."""

    def __len__(self) -> int:
        return len(self.candidates)

    def only(self, numbers: Iterable[int]) -> Options:
        """Some of the options."""
        at = np.fromiter(numbers, int)
        return Options(
            tuple(self.candidates[each] for each in at),
            self.seconds[at],
            self.kept[at],
            self.running[at],
            self.takes[at],
            self.leaves[at],
            self.leaves_gradient[at],
            self.weights[at],
        )

    def cheapest(self, objective: Vector) -> Options:
        """Of the options with the same layouts the one with the least `objective`.

        No optimum is lost: options with the same layouts cost the same on every edge, so that one
        may take the place of another in any plan.
        """
        least: dict[tuple[int, ...], int] = {}
        for at, key in enumerate(self._ends):
            if key not in least or objective[at] < objective[least[key]]:
                least[key] = at
        return self.only(least.values())

    def undominated(self, objective: Vector) -> Options:
        """Of the options with the same layouts those that no other beats, in memory either."""
        sums = np.stack([objective, self.kept, self.running], axis=1)
        found: dict[tuple[int, ...], list[int]] = {}
        for at in np.lexsort(sums.T[::-1]).tolist():
            own = found.setdefault(self._ends[at], [])
            if not (sums[own] <= sums[at]).all(axis=1).any():
                own.append(at)
        return self.only(at for own in found.values() for at in own)

    @cached_property
    def _ends(self) -> list[tuple[int, ...]]:
        """The layouts of every option at all its ends."""
        ends = self.takes, self.leaves, self.leaves_gradient, self.weights
        return list(zip(*(each.tolist() for each in ends), strict=True))


@dataclass
class Catalogue:
    """Options of the operators of a model, out of the sequences that `candidates` has of each."""

    model: ModelConfig
    training: Training
    candidates: Candidates
    layouts: Layouts
    _known: dict[object, Options] = field(default_factory=dict)
    _placed: dict[Candidate, _Placed] = field(default_factory=dict)

    @classmethod
    def whole(cls, model: ModelConfig, training: Training, space: SpaceName) -> Self:
        """The catalogue of all sequences of a space."""
        wires = training.wires
        return cls(model, training, SequenceSpace.whole(space, wires.bits).of, Layouts(wires))

    def options(self, operator: Operator) -> Options:
        """Options of an operator: the sequences that its sizes and the batch allow."""
        key = kind_of(operator)
        if key not in self._known:
            make = {"linear": self._linear, "embedding": self._embedding}
            found = make.get(operator.kind, self._local)(operator)
            self._known[key] = _options(found)
        return self._known[key]

    def _places(self, operator: Operator) -> Iterator[_Placed]:
        """Sequences of an operator with what does not depend on its sizes, found out once."""
        for candidate in self.candidates(operator):
            if candidate not in self._placed:
                self._placed[candidate] = self._place(candidate)
            yield self._placed[candidate]

    def _place(self, candidate: Candidate) -> _Placed:
        spread = candidate.spread
        ends = [each for each in ("I", "O", "dI") if each in spread]
        numbers = [self.layouts.number(spread[each]) for each in ends]
        rows, inputs = spread[ends[0]].grid
        key = alike(self.training.wires, candidate)
        return _Placed(candidate, key, (rows, inputs, spread["O"].grid[1]), tuple(numbers))

    def _linear(self, operator: Operator) -> Iterator[_Option]:
        head, training = operator.name == "head", self.training
        biased = f"{operator.name}.bias" in self.model.parameter_shapes
        costs: dict[object, Cost] = {}
        for candidate, key, (rows, inputs, columns), numbers in self._places(operator):
            if training.rows % rows or operator.N % inputs or (operator.K % columns and not head):
                continue
            if key not in costs:
                tied = head and self.model.tied
                shape = Linear(M=training.rows, N=operator.N, K=padded(operator.K, columns))
                costs[key] = linear_cost(training, shape, candidate, tied)
            weight = self.layouts.number(candidate.spread["W"].turned()) if head else 0
            cost = self._biased(operator.K, costs[key], numbers[1]) if biased else costs[key]
            yield _Option(candidate, cost, (*numbers, weight))

    def _biased(self, features: int, cost: Cost, leaves: int | None) -> Cost:
        """The cost with the sum of the gradient of the bias over the devices that share columns."""
        if leaves is None:
            return cost
        columns = features / self.layouts.slices(leaves, 1)
        bits = self.layouts.line(leaves, 0)
        more = self.training.wires.all_reduce(bits, columns * self.training.item)
        more += self.training.update(columns)
        kept = cost.kept + columns * self.training.kept
        return Cost(cost.seconds + more, kept, cost.running)

    def _local(self, operator: Operator) -> Iterator[_Option]:
        first: dict[int | None, Candidate] = {}
        for candidate, _, _, (number,) in self._places(operator):
            first.setdefault(number, candidate)
        for number, candidate in first.items():
            if number is not None and self._divides(operator, number):
                own = LocalOperatorCost(self.training, self.model, self.layouts, operator, number)
                yield _Option(candidate, own.cost, (number, number, number, 0))

    def _divides(self, operator: Operator, layout: int) -> bool:
        rows, columns = (self.layouts.slices(layout, dim) for dim in (0, 1))
        model, batch = self.model, self.training.batch
        if operator.kind == "attention":
            whole = batch % rows == 0 or rows % batch == 0
            cut = [model.heads, model.kv_heads]
        else:
            whole = True
            cut = {"activation": [model.ffn], "loss": []}.get(operator.kind, [model.hidden])
        return whole and self.training.rows % rows == 0 and not any(n % columns for n in cut)

    def _embedding(self, operator: Operator) -> Iterator[_Option]:
        for candidate, _, _, (leaves,) in self._places(operator):
            table = self.layouts.number(_table(candidate))
            if leaves is None or not self._divides(operator, leaves):
                continue
            bits = tuple(bit for element, places in candidate.places for bit in places
                         if isinstance(element.primitive, ByInput))  # fmt: skip
            cost = embedding_cost(self.training, self.model, self.layouts, leaves, bits)
            yield _Option(candidate, cost, (leaves, leaves, leaves, table))


class _Placed(NamedTuple):
    """A sequence with what of it costs alike, its slices of M, N and K, and its layouts."""

    candidate: Candidate
    alike: tuple[object, ...]
    slices: tuple[int, int, int]
    layouts: tuple[int | None, ...]


@dataclass(frozen=True)
class _Option:
    candidate: Candidate
    cost: Cost
    layouts: tuple[int | None, ...]
    """Takes, leaves, leaves gradient, weights."""


def kind_of(operator: Operator) -> tuple[object, ...]:
    """What operators have in common that share their options: all but the layer."""
    return operator.kind, operator.N, operator.K, operator.name.rpartition(".")[2]


def _options(found: Iterable[_Option]) -> Options:
    fitting = [each for each in found if None not in each.layouts]
    costs = [(each.cost.seconds, each.cost.kept, each.cost.running) for each in fitting]
    numbers = np.array([each.layouts for each in fitting], int).reshape(-1, 4)
    seconds, kept, running = np.array(costs).reshape(-1, 3).T
    takes, leaves, gradient, weights = numbers.T
    candidates = tuple(each.candidate for each in fitting)
    return Options(candidates, seconds, kept, running, takes, leaves, gradient, weights)


def _table(candidate: Candidate) -> Spread:
    """Where the embedding's table rests, over (vocabulary, hidden)."""
    found = Spread.whole()
    for element in candidate.elements:
        cut: Primitive = element.primitive
        own = element_spread(element, "W") if isinstance(cut, ByInput | ByOutput) else None
        found = found.then(own or Spread.whole(len(element.devices)))
    return found
