"""What operators make and read, in the order in which they do.

Each is given its inputs, already where it takes them, and the gradient of its output.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from primepar.models.graph import Operator
from primepar.plan.layouts import Way, ends, lookup, summed_rows, table_edge
from primepar.plan.memory.lifetimes import Lies
from primepar.plan.memory.step_memory import StepMemory
from primepar.plan.operator_layouts import part, sequence_lines
from primepar.schedule.layout import Cells
from primepar.schedule.operators import Linear


class Followed(Protocol):
    """One operator; `takes` are the cuts of its inputs."""

    takes: Cells

    def forward(self, *inputs: Lies) -> Lies:
        """Make the output."""
        ...

    def backward(self, dy: Lies | None) -> tuple[Lies, ...]:
        """Make the gradient of every input, of that of the output; the loss gets None."""
        ...


class LocalOperator:
    """An operator that works on the block of every rank."""

    def __init__(self, step: StepMemory, operator: Operator) -> None:
        self.step, self.events, self.operator = step, step.events, operator
        self.layout = ends(step.plan, operator.name).output
        self.takes = Cells.even(self.layout.grid)

    def of(self, columns: int) -> Lies:
        """A tensor of all rows and so many columns, in the operator's layout."""
        return Lies.in_layout(self.layout, self.step.rows * columns)

    def gradient(self, own: str, *reads: Lies) -> None:
        """Make the gradient of a parameter of the operator's."""
        name = f"{self.operator.name}.{own}"
        self.step.gradients[name] = self.events.make(replace(self.step.parameters[name]), *reads)


class Norm(LocalOperator):
    """Means go over the rows; what is normed is stashed, with its mean squares."""

    def __init__(self, step: StepMemory, operator: Operator) -> None:
        super().__init__(step, operator)
        own = (f"{operator.name}.{each}" for each in ("weight", "bias"))
        self.parameters = [step.parameters[name] for name in own if name in step.parameters]
        self.means = len(self.parameters)

    def forward(self, *inputs: Lies) -> Lies:
        """Centre, divide, and scale."""
        make, (x,), columns = self.events.make, inputs, self.operator.K
        if self.means == 2:
            x = make(self.of(columns), x, make(self.step.rows_of(self.layout, 1), x))
        self.square = make(self.step.rows_of(self.layout, 1), x)
        self.normed = make(self.of(columns), x, self.square)
        return make(self.of(columns), self.normed, *self.parameters)

    def backward(self, dy: Lies | None) -> tuple[Lies, ...]:
        """Gradients of weight and bias, then that of the rows."""
        assert dy is not None
        self.gradient("weight", dy, self.normed)
        if self.means == 2:
            self.gradient("bias", dy)
        reads = dy, self.parameters[0], self.normed
        sums = self.events.make(self.step.rows_of(self.layout, self.means), *reads)
        return (self.events.make(self.of(self.operator.K), *reads, self.square, sums),)


class Activation(LocalOperator):
    """Backward reads the input again."""

    def forward(self, *inputs: Lies) -> Lies:
        """Make the output."""
        self.inputs = inputs
        return self.events.make(self.of(self.operator.K), *inputs)

    def backward(self, dy: Lies | None) -> tuple[Lies, ...]:
        """Make the gradient of the input."""
        assert dy is not None
        return (self.events.make(self.of(self.operator.N), *self.inputs, dy),)


class Add(LocalOperator):
    """The gradient of the stream is that of the output; the branch has its own."""

    def forward(self, *inputs: Lies) -> Lies:
        """Make the sum."""
        return self.events.make(self.of(self.operator.K), *inputs)

    def backward(self, dy: Lies | None) -> tuple[Lies, ...]:
        """Make the gradient of the branch."""
        assert dy is not None
        return dy, self.events.make(self.of(self.operator.K), dy)


class Attention(LocalOperator):
    """Ranks that share a sequence gather its keys and values, and keep them for backward."""

    def __init__(self, step: StepMemory, operator: Operator) -> None:
        super().__init__(step, operator)
        model = step.plan.model
        self.keys = 2 * model.kv_heads * model.head_dim
        self.parts = len(sequence_lines(self.layout, step.batch)[0])
        rows, columns = self.layout.grid
        self.whole = Cells.even((rows // self.parts, columns))

    def forward(self, *inputs: Lies) -> Lies:
        """Make the output of the queries."""
        self.reads = list(inputs)
        if self.parts > 1:
            own = self.events.make(self.of(self.keys), *inputs)
            more_R = (self.parts - 1) * own.own_R
            gathered = replace(own, own_R=own.own_R + more_R)
            self.events.run(more_R, [own], [gathered])
            self.reads.append(self.events.reblocked(gathered, self.whole))
        return self.events.make(self.of(self.operator.K), *self.reads)

    def backward(self, dy: Lies | None) -> tuple[Lies, ...]:
        """Make the gradients of keys and values of whole sequences, and scatter them."""
        assert dy is not None
        reads = [*self.reads, dy]
        if self.parts > 1:
            whole = self.events.make(replace(self.reads[1]), *reads)
            cut = self.events.reblocked(whole, self.takes)
            own = self.of(self.keys)
            self.events.run(np.zeros_like(own.own_R), [cut], [own])
            reads.append(own)
        return (self.events.make(self.of(self.operator.N), *reads),)


class LinearOperator(LocalOperator):
    """The blocks of its sequence; a bias; a tied head fetches the table and sends dW back."""

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
        """Whether the weight is a copy of a table that lies elsewhere, or in other blocks."""
        if self.table is None:
            return False
        way, rests = self.table.forward, self.step.parameters["embedding.token"].cells
        return way.source != way.target or rests != self._cells("K", "N")

    def _cells(self, *dims: str) -> Cells:
        return Cells.even([self.grid[dim] for dim in dims])

    def forward(self, *inputs: Lies) -> Lies:
        """Run forward, and add the bias."""
        (x,), events, own = inputs, self.events, self.held
        if self.table is None:
            self.weight = self.step.parameters[f"{self.operator.name}.weight"]
        else:
            table, cells = self.step.parameters["embedding.token"], self._cells("K", "N")
            self.weight = events.moved(table, self.table.forward, cells, shared=True)
        self.stash = replace(x, own_R=own.stash_R)
        y = Lies(self._cells("M", "K"), self.step.rows * self.columns, own.output_R)
        before = own.weight_R + own.input_R
        events.run(own.forward_R - before, [x, self.weight], [self.stash, y])
        y = events.reblocked(y, Cells.even(self.layout.grid))
        if not self.bias:
            return y
        return events.make(
            self.of(self.columns), y, self.step.parameters[f"{self.operator.name}.bias"]
        )

    def backward(self, dy: Lies | None) -> tuple[Lies, ...]:
        """Run backward and gradient at once."""
        assert dy is not None
        events, own, name = self.events, self.held, self.operator.name
        if self.bias:
            self.gradient("bias", dy)
        dy = events.reblocked(dy, self._cells("M", "K"))
        dx = Lies(self.takes, self.step.rows * self.operator.N, own.input_gradient_R)
        dw = replace(self.weight, own_R=own.weight_R)
        before = own.weight_R + own.stash_R + own.output_R
        events.run(own.backward_R - before, [self.stash, self.weight, dy], [dx, dw])
        if self.table is None:
            self.step.gradients[f"{name}.weight"] = dw
        else:
            cells = self.step.parameters["embedding.token"].cells
            home = events.moved(dw, self.table.backward, cells)
            self.step.gradients["embedding.token"] = home
        return (dx,)


class Embedding(LocalOperator):
    """Each rank looks up what it holds of the table; partial rows are summed in parts."""

    def __init__(self, step: StepMemory, operator: Operator) -> None:
        super().__init__(step, operator)
        self.looked_up, self.kept = lookup(step.plan), summed_rows(step.plan)
        self.tokens = step.events.begin(step.rows_of(self.looked_up, 1))
        self.table = step.parameters["embedding.token"]
        self.positions = step.parameters.get("embedding.position")
        self.drops = step.plan.model.embedding_dropout > 0
        self.rows = Lies.in_layout(part(self.looked_up, (0, 2)), step.rows * operator.K)

    def forward(self, *inputs: Lies) -> Lies:
        """Look up, sum, and add the positions."""
        events = self.events
        rows = events.make(self.rows, self.tokens, self.table)
        cut = events.reblocked(rows, Cells.even(self.kept.grid))
        sums = Lies.in_layout(self.kept, self.step.rows * self.operator.K)
        events.run(np.zeros_like(sums.own_R), [cut], [sums])
        y = events.moved(sums, Way(self.kept, self.layout), self.takes)
        if self.positions is None and not self.drops:
            return y
        positions = [] if self.positions is None else [self.positions]
        return events.make(self.of(self.operator.K), y, *positions)

    def backward(self, dy: Lies | None) -> tuple[Lies, ...]:
        """Make the gradients of the tables; that of a tied head is there already."""
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
    """A row's largest logit, sum and target; the shares of all columns are made in backward."""

    def __init__(self, step: StepMemory, operator: Operator) -> None:
        super().__init__(step, operator)
        self.targets = step.events.begin(step.rows_of(self.layout, 1))

    def forward(self, *inputs: Lies) -> Lies:
        """Make the loss, one number."""
        make, rows_of, (x,) = self.events.make, self.step.rows_of, inputs
        largest = make(rows_of(self.layout, 1), x)
        sums = make(rows_of(self.layout, 2), x, largest, self.targets)
        self.reads = x, largest, sums
        one = Lies(Cells.even((1,)), 1, np.ones_like(x.own_R))
        return make(one, sums)

    def backward(self, dy: Lies | None) -> tuple[Lies, ...]:
        """Make the shares of all columns, and of these the gradient of the logits."""
        shares = self.events.make(self.of(self.step.vocabulary), *self.reads)
        return (self.events.make(self.of(self.step.vocabulary), shares, self.targets),)
