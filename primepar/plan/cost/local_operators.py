"""Time and memory of the operators that are not linear, by the layout in which they work.

Except for attention they have no products. Each reads and writes its tensors a few times through
device memory, and all-reduces over the devices that share its rows or its columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from primepar.models.config import ModelConfig
from primepar.models.graph import Operator
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.linear import Cost, Training

BACKWARD = 2.5
"""Products of attention in backward for each in forward: four, and the recomputed scores."""


@dataclass(frozen=True)
class LocalOperatorCost:
    """An operator that is not linear, in the layout with the number `layout`."""

    training: Training
    model: ModelConfig
    layouts: Layouts
    operator: Operator
    layout: int

    @property
    def cost(self) -> Cost:
        """Time and memory over a training step."""
        cost: Cost = getattr(self, f"_{self.operator.kind}")()
        return cost

    def _held(self, columns: int) -> float:
        """Elements on a device of a tensor of all rows and `columns` columns."""
        return self.layouts.share(self.layout) * self.training.rows * columns

    @property
    def _rows(self) -> float:
        return self.training.rows / self.layouts.slices(self.layout, 0)

    def _columns(self, columns: int) -> float:
        return columns / self.layouts.slices(self.layout, 1)

    def _all_reduce(self, dim: int, elements: float) -> float:
        """Seconds to all-reduce over the devices that hold the parts of rows (0) or columns (1)."""
        bits = self.layouts.line(self.layout, dim)
        return self.training.links.all_reduce(bits, elements * self.training.wide_item)

    def _passes(self, *elements: float) -> float:
        """Seconds of memory-bound kernels, one for each number of elements."""
        return sum(self.training.seconds(0, amount, self.operator.kind) for amount in elements)

    def _norm(self) -> Cost:
        centred = self.model.norm == "layer"
        local, columns = self._held(self.operator.K), self._columns(self.operator.K)
        sums = 1 + centred
        communication = self._statistics(sums * self._rows)
        communication += self._all_reduce(1, sums * self._rows)
        numbers = 2 * self.layouts.slices(self.layout, 1) if centred else 1
        weights = self.training.parameter(columns)
        return Cost(compute=self._passes(4 * local, 5 * local), communication=communication,
                    reduction=self._all_reduce(0, sums * columns),
                    stash=(local + self._rows * numbers) * self.training.wide_item,
                    running=local * self.training.item,
                    **{term: sums * amount for term, amount in weights.items()})  # fmt: skip

    def _statistics(self, elements: float) -> float:
        """Seconds to all-gather moments of a layer norm's rows, or all-reduce mean squares."""
        if self.model.norm != "layer":
            return self._all_reduce(1, elements)
        bits = self.layouts.line(self.layout, 1)
        return self.training.links.all_gather(bits, elements * self.training.wide_item)

    def _add(self) -> Cost:
        local = self._held(self.operator.K)
        return Cost(compute=self._passes(3 * local), running=3 * local * self.training.item)

    def _activation(self) -> Cost:
        inputs, outputs = self._held(self.operator.N), self._held(self.operator.K)
        compute = self._passes(inputs + outputs, 2 * inputs + outputs)
        item = self.training.item
        return Cost(compute=compute, stash=inputs * item, running=(inputs + 2 * outputs) * item)

    def _attention(self) -> Cost:
        """The queries of a device's rows, with all keys of their sequences, gathered if needed."""
        model, training = self.model, self.training
        inputs, outputs = self._held(self.operator.N), self._held(self.operator.K)
        operations = 4 * outputs * training.positions
        compute = training.seconds(operations, inputs + outputs, "attention")
        compute += training.seconds(BACKWARD * operations, 2 * inputs + 2 * outputs, "attention")
        keys = self._held(2 * model.kv_heads * model.head_dim)
        parts = max(1, self.layouts.slices(self.layout, 0) // training.batch)
        line = self.layouts.line(self.layout, 0)
        inner = line[len(line) - (parts.bit_length() - 1) :]
        size = keys * training.item
        communication = training.links.all_gather(inner, size)
        communication += training.links.reduce_scatter(inner, size)
        stash = inputs + (parts - 1) * keys
        return Cost(compute=compute, communication=communication, stash=stash * training.item,
                    running=(stash + 2 * outputs) * training.item)  # fmt: skip

    def _loss(self) -> Cost:
        """All-reduces of three numbers per row over the columns, and of the mean over the rows."""
        local = self._held(padded(self.operator.N, self.layouts.slices(self.layout, 1)))
        communication = 3 * self._all_reduce(1, self._rows) + self._all_reduce(0, 1)
        return Cost(compute=self._passes(4 * local), communication=communication,
                    running=2 * local * self.training.item)  # fmt: skip


def padded(vocabulary: int, slices: int) -> int:
    """The vocabulary, padded to a multiple of its slices."""
    return -(-vocabulary // slices) * slices


class Lookup(NamedTuple):
    """Numbers of the layouts of the embedding's output, and of the rows that a device looks up.

    `bits` are those over which the vocabulary is cut and partial rows are summed. Where the sum
    leaves every device some of the rows, forward is a reduce-scatter, and backward an all-gather.
    """

    output: int
    looked_up: int
    bits: tuple[int, ...]


def embedding_cost(training: Training, model: ModelConfig, layouts: Layouts, lookup: Lookup
                   ) -> Cost:  # fmt: skip
    """Cost of the embedding: the sums of partial rows, and those of the tables' gradients."""
    rows, columns = (layouts.slices(lookup.looked_up, dim) for dim in (0, 1))
    local = training.rows / rows * model.hidden / columns
    parts = 1 << len(lookup.bits)
    table = padded(model.vocabulary, parts) / parts * model.hidden / columns
    positions = model.context * model.hidden / columns if model.positions == "learned" else 0.0
    compute = sum(
        training.seconds(0, amount, "embedding") for amount in (2 * local, 2 * local + table)
    )
    links, item = training.links, training.wide_item
    lines = [layouts.line(layout, 0) for layout in (lookup.looked_up, lookup.output)]
    if lines[0] == lines[1]:
        reduction = links.all_reduce(lines[0], (table + positions) * item)
    else:
        reduction = links.all_reduce(lines[0], table * item)
        reduction += links.all_reduce(lines[1], positions * item) if positions else 0.0
    weights = [training.parameter(elements) for elements in (table, positions)]
    return Cost(compute=compute,
                communication=links.all_reduce(lookup.bits, local * training.item),
                reduction=reduction, running=2 * local * training.item,
                **{term: sum(costs[term] for costs in weights) for term in weights[0]})  # fmt: skip
