"""Time and memory of the operators that are not linear, by the layout in which they work.

They multiply nothing but for attention: each passes its tensors through the memory of the device a
few times, and sums over the devices that share its rows or its columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from primepar.models.config import ModelConfig
from primepar.models.graph import Operator
from primepar.plan.cost.layouts import Layouts
from primepar.plan.cost.linear import Cost, Training

BACKWARD = 2.5
"""Products of attention in backward for each in forward: four, and the scores once more."""


@dataclass(frozen=True)
class LocalOperatorCost:
    """An operator that is not linear, in the layout of that number."""

    training: Training
    model: ModelConfig
    layouts: Layouts
    operator: Operator
    layout: int

    @property
    def cost(self) -> Cost:
        """Time and memory over a training step."""
        found: Cost = getattr(self, f"_{self.operator.kind}")()
        return found

    def _own(self, columns: int) -> float:
        """Elements of a tensor of all rows and so many columns that a device has."""
        return self.layouts.share(self.layout) * self.training.rows * columns

    @property
    def _own_rows(self) -> float:
        return self.training.rows / self.layouts.slices(self.layout, 0)

    def _own_columns(self, columns: int) -> float:
        return columns / self.layouts.slices(self.layout, 1)

    def _all_reduce(self, dim: int, elements: float) -> float:
        """Sums over the devices that hold the parts of rows (0) or columns (1) between them."""
        bits = self.layouts.line(self.layout, dim)
        return self.training.wires.all_reduce(bits, elements * self.training.item)

    def _passes(self, *elements: float) -> float:
        """So many elements through a device's memory, one operation for each amount."""
        return sum(self.training.seconds(0, each, self.operator.kind) for each in elements)

    def _norm(self) -> Cost:
        centred = self.model.norm == "layer"
        own, weights = self._own(self.operator.K), self._own_columns(self.operator.K)
        weights *= 1 + centred
        sums = 1 + centred
        seconds = self._passes(4 * own, 5 * own) + sums * self.training.update(weights / sums)
        seconds += sums * self._all_reduce(1, self._own_rows)
        seconds += self._all_reduce(1, sums * self._own_rows) + self._all_reduce(0, weights)
        stash = (own + self._own_rows) * self.training.item
        return Cost(seconds, weights * self.training.kept + stash, own * self.training.item)

    def _add(self) -> Cost:
        own = self._own(self.operator.K)
        return Cost(self._passes(3 * own), 0.0, 3 * own * self.training.item)

    def _activation(self) -> Cost:
        read, made = self._own(self.operator.N), self._own(self.operator.K)
        seconds = self._passes(read + made, 2 * read + made)
        item = self.training.item
        return Cost(seconds, read * item, (read + 2 * made) * item)

    def _attention(self) -> Cost:
        """Queries of a device's rows with all keys of their sequences, which it may have to get."""
        model, training = self.model, self.training
        read, made = self._own(self.operator.N), self._own(self.operator.K)
        operations = 4 * made * training.positions
        seconds = training.seconds(operations, read + made, "attention")
        seconds += training.seconds(BACKWARD * operations, 2 * read + 2 * made, "attention")
        keys = self._own(2 * model.kv_heads * model.head_dim)
        parts = max(1, self.layouts.slices(self.layout, 0) // training.batch)
        line = self.layouts.line(self.layout, 0)
        inner = line[len(line) - (parts.bit_length() - 1) :]
        seconds += 2 * training.wires.all_gather(inner, keys * training.item)
        gathered = (parts - 1) * keys
        kept = (read + gathered) * training.item
        return Cost(seconds, kept, (read + 2 * made + gathered) * training.item)

    def _loss(self) -> Cost:
        """Three numbers of each row go over its devices, and one, the mean, over the rows'."""
        own = self._own(padded(self.operator.N, self.layouts.slices(self.layout, 1)))
        seconds = self._passes(4 * own) + 3 * self._all_reduce(1, self._own_rows)
        seconds += self._all_reduce(0, 1)
        return Cost(seconds, 0.0, 2 * own * self.training.item)


def padded(vocabulary: int, slices: int) -> int:
    """The vocabulary with what makes it a multiple of its slices."""
    return -(-vocabulary // slices) * slices


def embedding_cost(
    training: Training, model: ModelConfig, layouts: Layouts, layout: int, bits: tuple[int, ...]
) -> Cost:
    """Cost of the embedding, whose vocabulary is cut over some device bits and summed over them."""
    rows, columns = (layouts.slices(layout, dim) for dim in (0, 1))
    own = training.rows / rows * model.hidden / columns
    parts = 1 << len(bits)
    table = padded(model.vocabulary, parts) / parts * model.hidden / columns
    positions = model.context * model.hidden / columns if model.positions == "learned" else 0.0
    line = layouts.line(layout, 0)
    seconds = sum(training.seconds(0, each, "embedding") for each in (2 * own, 2 * own + table))
    seconds += training.update(table) + training.update(positions)
    seconds += training.wires.all_reduce(bits, own * training.item)
    seconds += training.wires.all_reduce(line, (table + positions) * training.item)
    return Cost(seconds, (table + positions) * training.kept, 2 * own * training.item)
