"""The tensors that each kind of operator reads and writes, in the order in which it does.

Inputs are given in the layout of the operator, and so is the gradient of its output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from primepar.models.graph import Operator
from primepar.plan.layouts import Way, ends, lookup, summed_rows, table_edge
from primepar.plan.memory.lifetimes import PlacedTensor
from primepar.plan.memory.step_memory import StepMemory
from primepar.plan.operator_layouts import part, sequence_lines
from primepar.schedule.layout import Cells
from primepar.schedule.operators import Linear


class Followed(Protocol):
    """An operator whose tensors are followed; `takes` are the cuts of its inputs."""

    takes: Cells

    def forward(self, *inputs: PlacedTensor) -> PlacedTensor:
        """Record forward; returns the output."""
        ...

    def backward(self, dy: PlacedTensor | None) -> tuple[PlacedTensor, ...]:
        """Record backward; returns the gradient of every input. `dy` is None for the loss."""
        ...


class LocalOperator:
    """An operator that works on one block on every rank."""

    def __init__(self, step: StepMemory, operator: Operator) -> None:
        self.step, self.events, self.operator = step, step.events, operator
        self.layout = ends(step.plan, operator.name).output
        self.takes = Cells.even(self.layout.grid)

    def of(self, columns: int) -> PlacedTensor:
        """A tensor of all rows and `columns` columns, in the operator's layout."""
        return PlacedTensor.in_layout(self.layout, self.step.rows * columns)

    def gradient(self, role: str, *reads: PlacedTensor) -> None:
        """Write the gradient of one of the operator's parameters."""
        name = f"{self.operator.name}.{role}"
        self.step.gradients[name] = self.events.make(replace(self.step.parameters[name]), *reads)


class Norm(LocalOperator):
    """LayerNorm or RMSNorm: the normalized rows and their statistics are stashed."""

    def __init__(self, step: StepMemory, operator: Operator) -> None:
        super().__init__(step, operator)
        names = (f"{operator.name}.{role}" for role in ("weight", "bias"))
        self.parameters = [step.parameters[name] for name in names if name in step.parameters]
        self.means = len(self.parameters)

    def forward(self, *inputs: PlacedTensor) -> PlacedTensor:
        """Normalize, and scale."""
        make, (x,), columns = self.events.make, inputs, self.operator.K
        self.statistics = (
            self._moments(x) if self.means == 2 else make(self.step.rows_of(self.layout, 1), x)
        )
        self.normed = make(self.of(columns), x, self.statistics)
        return make(self.of(columns), self.normed, *self.parameters)

    def backward(self, dy: PlacedTensor | None) -> tuple[PlacedTensor, ...]:
        """Write the gradients of weight and bias, then that of the rows."""
        assert dy is not None
        self.gradient("weight", dy, self.normed)
        if self.means == 2:
            self.gradient("bias", dy)
        reads = dy, self.parameters[0], self.normed
        sums = self.events.make(self.step.rows_of(self.layout, self.means), *reads)
        return (self.events.make(self.of(self.operator.K), *reads, self.statistics, sums),)

    def _moments(self, x: PlacedTensor) -> PlacedTensor:
        """Compute two numbers for a rank's part of each row, and gather those of all parts."""
        rows, parts = self.layout.grid
        local = self.events.make(self.of(2 * parts), x)
        if parts == 1:
            return local
        more_R = (parts - 1) * local.local_R
        gathered = replace(local, local_R=local.local_R + more_R)
        self.events.run(more_R, [local], [gathered])
        return self.events.reblocked(gathered, Cells.even((rows, 1)))


class Activation(LocalOperator):
    """An activation; its input is stashed for backward."""

    def forward(self, *inputs: PlacedTensor) -> PlacedTensor:
        """Write the output."""
        self.inputs = inputs
        return self.events.make(self.of(self.operator.K), *inputs)

    def backward(self, dy: PlacedTensor | None) -> tuple[PlacedTensor, ...]:
        """Write the gradient of the input."""
        assert dy is not None
        return (self.events.make(self.of(self.operator.N), *self.inputs, dy),)


class Add(LocalOperator):
    """A residual addition: the stream's gradient is that of the output, the branch has a copy."""

    def forward(self, *inputs: PlacedTensor) -> PlacedTensor:
        """Write the sum."""
        return self.events.make(self.of(self.operator.K), *inputs)

    def backward(self, dy: PlacedTensor | None) -> tuple[PlacedTensor, ...]:
        """Write the gradient of the branch."""
        assert dy is not None
        return dy, self.events.make(self.of(self.operator.K), dy)


class Attention(LocalOperator):
    """Ranks that share a sequence all-gather its keys and values, and keep them for backward."""

    def __init__(self, step: StepMemory, operator: Operator) -> None:
        super().__init__(step, operator)
        model = step.plan.model
        self.keys = 2 * model.kv_heads * model.head_dim
        self.parts = len(sequence_lines(self.layout, step.batch)[0])
        rows, columns = self.layout.grid
        self.whole = Cells.even((rows // self.parts, columns))

    def forward(self, *inputs: PlacedTensor) -> PlacedTensor:
        """Gather keys and values where needed, and write the output of the queries."""
        self.reads = list(inputs)
        if self.parts > 1:
            local = self.events.make(self.of(self.keys), *inputs)
            more_R = (self.parts - 1) * local.local_R
            gathered = replace(local, local_R=local.local_R + more_R)
            self.events.run(more_R, [local], [gathered])
            self.reads.append(self.events.reblocked(gathered, self.whole))
        return self.events.make(self.of(self.operator.K), *self.reads)

    def backward(self, dy: PlacedTensor | None) -> tuple[PlacedTensor, ...]:
        """Write the gradients of keys and values of whole sequences, and reduce-scatter them."""
        assert dy is not None
        reads = [*self.reads, dy]
        if self.parts > 1:
            whole = self.events.make(replace(self.reads[1]), *reads)
            cut = self.events.reblocked(whole, self.takes)
            local = self.of(self.keys)
            self.events.run(np.zeros_like(local.local_R), [cut], [local])
            reads.append(local)
        return (self.events.make(self.of(self.operator.N), *reads),)


class LinearOperator(LocalOperator):
    """A linear operator in its sequence's blocks; a tied head receives the table, returns dW."""

    def __init__(self, step: StepMemory, operator: Operator) -> None:
        super().__init__(step, operator)
        name, self.grid = operator.name, step.plan.sequence(operator.name).grid
        self.columns = step.vocabulary if name == "head" else operator.K
        shape = Linear(M=step.rows, N=operator.N, K=self.columns)
        self.table = table_edge(step.plan) if name == "head" else None
        self.held = step.linear(name, shape, self._is_copied)
        self.takes, self.bias = self._cells("M", "N"), f"{name}.bias" in step.parameters

    @property
    def _is_copied(self) -> bool:
        """Whether the weight is a copy of a table with another layout or other blocks."""
        if self.table is None:
            return False
        way, table_blocks = self.table.forward, self.step.parameters["embedding.token"].cells
        return way.source != way.target or table_blocks != self._cells("K", "N")

    def _cells(self, *dims: str) -> Cells:
        return Cells.even([self.grid[dim] for dim in dims])

    def forward(self, *inputs: PlacedTensor) -> PlacedTensor:
        """Run forward, and add the bias."""
        (x,), events, held = inputs, self.events, self.held
        if self.table is None:
            self.weight = self.step.parameters[f"{self.operator.name}.weight"]
        else:
            table, cells = self.step.parameters["embedding.token"], self._cells("K", "N")
            self.weight = events.moved(table, self.table.forward, cells, shared=True)
        self.stash = replace(x, local_R=held.stash_R)
        y = PlacedTensor(self._cells("M", "K"), self.step.rows * self.columns, held.output_R)
        before = held.weight_R + held.input_R
        events.run(held.forward_R - before, [x, self.weight], [self.stash, y])
        y = events.reblocked(y, Cells.even(self.layout.grid))
        if not self.bias:
            return y
        return events.make(
            self.of(self.columns), y, self.step.parameters[f"{self.operator.name}.bias"]
        )

    def backward(self, dy: PlacedTensor | None) -> tuple[PlacedTensor, ...]:
        """Run backward and gradient at once."""
        assert dy is not None
        events, held, name = self.events, self.held, self.operator.name
        if self.bias:
            self.gradient("bias", dy)
        dy = events.reblocked(dy, self._cells("M", "K"))
        dx = PlacedTensor(self.takes, self.step.rows * self.operator.N, held.input_gradient_R)
        dw = replace(self.weight, local_R=held.weight_R)
        before = held.weight_R + held.stash_R + held.output_R
        events.run(held.backward_R - before, [self.stash, self.weight, dy], [dx, dw])
        if self.table is None:
            self.step.gradients[f"{name}.weight"] = dw
        else:
            cells = self.step.parameters["embedding.token"].cells
            home = events.moved(dw, self.table.backward, cells)
            self.step.gradients["embedding.token"] = home
        return (dx,)


class Embedding(LocalOperator):
    """Each rank looks up what it holds of the table; partial rows are reduced in parts."""

    def __init__(self, step: StepMemory, operator: Operator) -> None:
        super().__init__(step, operator)
        self.looked_up, self.kept = lookup(step.plan), summed_rows(step.plan)
        self.tokens = step.events.begin(step.rows_of(self.looked_up, 1))
        self.table = step.parameters["embedding.token"]
        self.positions = step.parameters.get("embedding.position")
        self.drops = step.plan.model.embedding_dropout > 0
        self.rows = PlacedTensor.in_layout(part(self.looked_up, (0, 2)), step.rows * operator.K)

    def forward(self, *inputs: PlacedTensor) -> PlacedTensor:
        """Look up, reduce, and add the positions."""
        events = self.events
        rows = events.make(self.rows, self.tokens, self.table)
        cut = events.reblocked(rows, Cells.even(self.kept.grid))
        sums = PlacedTensor.in_layout(self.kept, self.step.rows * self.operator.K)
        events.run(np.zeros_like(sums.local_R), [cut], [sums])
        y = events.moved(sums, Way(self.kept, self.layout), self.takes)
        if self.positions is None and not self.drops:
            return y
        positions = [] if self.positions is None else [self.positions]
        return events.make(self.of(self.operator.K), y, *positions)

    def backward(self, dy: PlacedTensor | None) -> tuple[PlacedTensor, ...]:
        """Write the gradients of the tables; that of a tied head exists already and is added."""
        assert dy is not None
        step, events = self.step, self.events
        if self.drops:
            dy = events.make(self.of(self.operator.K), dy)
        if self.positions is not None:
            self.gradient("position", dy)
        way = Way(self.layout, part(self.looked_up, (0, 2)))
        dy = events.moved(dy, way, self.rows.cells)
        head = step.gradients.get("embedding.token")
        self.gradient("token", self.tokens, dy)
        if head is not None:
            self.gradient("token", step.gradients["embedding.token"], head)
        return ()


class Loss(LocalOperator):
    """Cross-entropy: the maximum, sum and target of each row are stashed, no probabilities."""

    def __init__(self, step: StepMemory, operator: Operator) -> None:
        super().__init__(step, operator)
        self.targets = step.events.begin(step.rows_of(self.layout, 1))

    def forward(self, *inputs: PlacedTensor) -> PlacedTensor:
        """Write the loss, one number."""
        make, rows_of, (x,) = self.events.make, self.step.rows_of, inputs
        largest = make(rows_of(self.layout, 1), x)
        sums = make(rows_of(self.layout, 2), x, largest, self.targets)
        self.reads = x, largest, sums
        number = PlacedTensor(Cells.even((1,)), 1, np.ones_like(x.local_R))
        return make(number, sums)

    def backward(self, dy: PlacedTensor | None) -> tuple[PlacedTensor, ...]:
        """Write the probabilities of all columns, and from these the gradient of the logits."""
        shares = self.events.make(self.of(self.step.vocabulary), *self.reads)
        return (self.events.make(self.of(self.step.vocabulary), shares, self.targets),)
