"""Time and memory of the operators that are not linear, by the layout in which they work.

Except for attention they have no products. Each reads and writes its tensors a few times through
device memory, and all-reduces over the devices that share its rows or its columns.

Routed experts are spread over the devices: priced, not run. Every token is sent to the devices of
its chosen experts, and their outputs come back: two all-to-alls in forward and two in backward, of
the dispatch's sizes. A token that several devices hold is routed by one of them. The router spreads
tokens evenly. Expert parallelism is an axis of its own over the innermost devices: as many as are
asked for, or else one for each expert, or all. Each has an equal part of the experts; groups of
such devices sum gradients.
Example: 8 experts, 2 for each token, on 16 devices with 16 tokens each, in rows. Groups of 8 have
an expert on every device. A device sends 2 x 16 rows, 7 / 8 of them to others, and as many
arrive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from primepar.errors import PlanError
from primepar.models.config import Experts, ModelConfig
from primepar.models.graph import Operator
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.linear import Cost, Training
from primepar.plan.cost.links import ClusterLinks
from primepar.plan.kernels import Passes

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
        if kernels is None or kind == "attention":
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
        scores = outputs * model.heads / self.operator.K * training.attended(model)
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


class Weights(NamedTuple):
    """Elements of the weights of a mean layer: of routed experts, and of what all tokens meet."""

    routed: float
    shared: float

    @classmethod
    def of(cls, model: ModelConfig, experts: Experts, weights: float) -> Weights:
        """Of the `weights` of an operator of experts those that are routed, and all others."""
        matrices = 3 if model.gated else 2
        layers = (model.layers - experts.dense) / model.layers
        routed = layers * experts.count * matrices * model.hidden * experts.ffn
        return cls(routed, weights - routed)


def expert_bits(experts: Experts, links: ClusterLinks) -> tuple[int, ...]:
    """The innermost device bits over which experts are spread, the same number on each.

    Raises `PlanError` for fewer devices than are asked for.
    """
    if experts.spread is not None and experts.spread > links.devices:
        raise PlanError(
            f"expected experts over at most {links.devices} devices, those of a replica of a "
            f"stage, got {experts.spread}: take --ep {links.devices}"
        )
    most = (experts.spread or experts.count & -experts.count).bit_length() - 1
    return tuple(range(links.bits - min(links.bits, most), links.bits))


def experts_cost(
    training: Training, model: ModelConfig, experts: Experts, layouts: Layouts, layout: int
) -> Cost:
    """Cost of the experts of a layer over a training step, in a layout with whole columns."""
    links, item = training.links, training.item
    elements, active = model.layer_weights["experts"]
    spread, weights = expert_bits(experts, links), Weights.of(model, experts, elements)
    here = layouts.share(layout) * training.rows  # rows that a device holds
    tokens = training.rows / links.devices  # rows that it routes
    copies = layouts.others(layouts.line(layout, 0))
    dispatch = all_to_all(links, spread, tokens * experts.chosen * model.hidden * item)
    gathered = links.all_gather(copies, tokens * model.hidden * item)
    routed = weights.routed / 2 ** len(spread)
    width = 3 if model.gated else 2
    inside = experts.chosen * (model.hidden + width * experts.ffn) + width * experts.shared
    touched = tokens * (inside + model.hidden) + routed + weights.shared
    forward = training.seconds(2 * tokens * active, touched)
    apart = tuple(bit for bit in range(links.bits) if bit not in spread)
    everybody = tuple(range(links.bits))
    parts = (
        training.parameter(routed, weights.routed, apart, apart),
        training.parameter(weights.shared, weights.shared, everybody, everybody),
    )
    kept = {term: parts[0][term] + parts[1][term] for term in parts[0]}
    return Cost(
        compute=3 * forward, communication=4 * dispatch + 2 * gathered,
        forward=forward, forward_communication=2 * dispatch + gathered,
        stash=(here * model.hidden + tokens * inside) * item, unmoved=here * model.hidden * item,
        running=2 * tokens * experts.chosen * model.hidden * item, **kept,
    )  # fmt: skip


def all_to_all(links: ClusterLinks, bits: tuple[int, ...], size: float) -> float:
    """Seconds in which devices that differ in innermost bits exchange `size` bytes from each.

    A level carries what goes to the devices that it joins and the level below does not; behind a
    shared port are all devices of the level below. Example: of 16 devices in two nodes, 8 / 16 of
    the bytes of each leave a node, by the port that 8 devices share.
    """
    group, below, seconds = 1 << len(bits), 1, 0.0
    for level, link in enumerate(links.by_level):
        joined = min(group, 1 << sum(bit_level <= level for bit_level in links.levels))
        if joined > below:
            behind = below if link.shared else 1
            sent = behind * size * (joined - below) / group
            lines = link.collective("all_to_all", joined, sent / behind, joined - below)
            seconds = max(seconds, lines.start + sent / (link.bandwidth if link.shared else
                                                         lines.bandwidth))  # fmt: skip
        below = max(below, joined)
    return seconds
