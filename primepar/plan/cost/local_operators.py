"""Time and memory of the operators that are not linear, by the layout in which they work.

Except for attention they have no products. Each reads and writes its tensors a few times through
device memory, and all-reduces over the devices that share its rows or its columns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from primepar.models.config import ModelConfig
from primepar.models.graph import Operator
from primepar.plan.cost.experts import experts_cost
from primepar.plan.cost.kernels import Passes
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
        kernels, kind = self.training.kernels, self.operator.kind
        if kernels is None or kind == "attention" or kind in self.training.cluster.operators:
            return cost
        share = self.layouts.share(self.layout) * self.training.batch
        name = self.operator.name.rpartition(".")[2]
        forward, backward = (self.training.passes(way.get(name, Passes()), share, kind)
                             for way in (kernels.forward, kernels.backward))  # fmt: skip
        return cost._replace(forward=forward, compute=forward + backward)

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
        forward, backward = self._passes(4 * local), self._passes(5 * local)
        statistics = self._statistics(sums * self._rows)
        sums_back = self._all_reduce(1, sums * self._rows)
        numbers = 2 * self.layouts.slices(self.layout, 1) if centred else 1
        line = self.layouts.line
        weights = self.training.parameter(
            sums * columns, sums * self.operator.K, line(self.layout, 0),
            self.layouts.others(line(self.layout, 1)), tensors=sums,
        )  # fmt: skip
        return Cost(
            compute=forward + backward, communication=statistics + sums_back,
            forward=forward, forward_communication=statistics,
            stash=(local + self._rows * numbers) * self.training.wide_item,
            running=local * self.training.item,
            **weights,
        )  # fmt: skip

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
        forward, backward = self._passes(inputs + outputs), self._passes(2 * inputs + outputs)
        item = self.training.item
        return Cost(compute=forward + backward, forward=forward, stash=inputs * item,
                    unmoved=inputs * item, running=(inputs + 2 * outputs) * item)  # fmt: skip

    def _attention(self) -> Cost:
        """The queries of a device's rows, with all keys of their sequences, gathered if needed."""
        model, training = self.model, self.training
        inputs, outputs = self._held(self.operator.N), self._held(self.operator.K)
        # Scores are as wide as a head's queries, and weighted sums as wide as its values.
        products = 1 + model.heads * model.head_dim / self.operator.K
        operations = 2 * products * outputs * training.attended(model)
        scores = outputs * model.heads / self.operator.K * training.positions
        forward = training.seconds(operations, inputs + outputs, "attention", scores)
        backward = training.seconds(BACKWARD * operations, 2 * inputs + 2 * outputs, "attention",
                                    BACKWARD * scores)  # fmt: skip
        keys = self._held(self.operator.N - model.heads * model.head_dim)
        parts = max(1, self.layouts.slices(self.layout, 0) // training.batch)
        line = self.layouts.line(self.layout, 0)
        inner = line[len(line) - (parts.bit_length() - 1) :]
        size = keys * training.item
        gather = training.links.all_gather(inner, size)
        scatter = training.links.reduce_scatter(inner, size)
        stash = inputs + (parts - 1) * keys
        return Cost(
            compute=forward + backward, communication=gather + scatter,
            forward=forward, forward_communication=gather, stash=stash * training.item,
            unmoved=inputs * training.item, running=(stash + 2 * outputs) * training.item,
        )  # fmt: skip

    def _experts(self) -> Cost:
        experts = self.model.experts
        assert experts is not None  # else there is no such operator
        return experts_cost(self.training, self.model, experts, self.layouts, self.layout)

    def _loss(self) -> Cost:
        """All-reduces of three numbers per row over the columns, and of the mean over the rows."""
        local = self._held(padded(self.operator.N, self.layouts.slices(self.layout, 1)))
        communication = 3 * self._all_reduce(1, self._rows)
        mean = self.layouts.line(self.layout, 0)
        communication += self.training.sums.all_reduce(mean, self.training.wide_item)
        wide = self.training.item + self.training.wide_item  # logits, and their softmax in float32
        return Cost(compute=self._passes(4 * local), communication=communication,
                    running=local * wide)  # fmt: skip


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
    forward = training.seconds(0, 2 * local, "embedding")
    line, others = layouts.line, layouts.others
    held = others((*lookup.bits, *line(lookup.looked_up, 1)))
    rows_of_table, rows_of_output = (
        line(layout, 0) for layout in (lookup.looked_up, lookup.output)
    )
    whole = padded(model.vocabulary, parts) * model.hidden
    weights = [training.parameter(table, whole, rows_of_table, held)]
    if positions:
        whole, held = model.context * model.hidden, others(line(lookup.output, 1))
        weights.append(training.parameter(positions, whole, rows_of_output, held))
    terms = {term: sum(weight[term] for weight in weights) for term in weights[0]}
    if rows_of_table == rows_of_output:  # the step's program sums both together
        reduction = training.summed(table + positions, rows_of_table, held)["reduction"]
        terms["reduction"] = reduction
    sums = training.links.all_reduce(lookup.bits, local * training.item)
    return Cost(compute=compute, communication=sums, forward=forward,
                running=2 * local * training.item, **terms)  # fmt: skip
