"""The attention of a step: every rank's queries attend to all keys of its sequences.

If a rank holds a part of a sequence, the ranks that share the sequence all-gather its keys and
values. In backward they reduce-scatter the gradients of these.
"""

from __future__ import annotations

from primepar.models.graph import Operator
from primepar.operators.builder import View, even
from primepar.operators.redistribution import gathered, summed_in_parts
from primepar.operators.step_context import StepContext
from primepar.plan.operator_layouts import sequence_lines


class AttentionLowering:
    """Attention with columns sharded by whole groups of heads."""

    def __init__(self, step: StepContext, operator: Operator) -> None:
        self.builder, self.name = step.builder, operator.name
        self.layout = step.ends(self.name).output
        self.given = step.space(self.layout, operator.N)
        self.made = step.space(self.layout, operator.K)
        model = step.plan.model
        self.shared = step.space(self.layout, 2 * model.kv_heads * model.head_dim)
        self.lines = sequence_lines(self.layout, step.batch)
        self.parts = len(self.lines[0])
        self.takes = self.given.cuts

    def forward(self, *inputs: View) -> View:
        """Lower the outputs of the heads, concatenated along the columns."""
        (x,) = inputs
        self.reads = [x] if self.parts == 1 else [x, self._gathered(x)]
        writes = f"{self.name}[M,K]"
        return self.builder.compute(self.name, "attention.forward", self.made, self.reads, writes)

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradient of the qkv columns."""
        reads = [*self.reads, dy]
        if self.parts > 1:
            reads.append(self._scattered(reads))
        writes = f"{self.name}/dI[M,K]"
        return (self.builder.compute(self.name, "attention.backward", self.given, reads, writes),)

    def _gathered(self, x: View) -> View:
        """All-gather keys and values of full sequences; every rank contributes its rows."""
        builder, name = self.builder, f"{self.name}/KV"
        local = builder.compute(self.name, "attention.keys", self.shared, [x], f"{name}[M,K]")
        whole = gathered(builder, local, self.lines, self._whole, f"{name}.sequences")
        return View(whole.name, whole.cuts, whole.held, (f"M/{self.parts}", "K"))

    def _scattered(self, reads: list[View]) -> View:
        """Reduce-scatter the gradients of keys and values over all queries of the sequence."""
        kernel, writes = "attention.backward.keys", f"{self.name}/dKV[M/{self.parts},K]"
        whole = self.builder.compute(self.name, kernel, self.shared, reads, writes)
        rows = [row for ((row, _),) in self.layout.held]
        name = f"{self.name}/dKV.own"
        summed = summed_in_parts(self.builder, whole, self.lines, rows, self.shared.cuts, name)
        return View(summed.name, summed.cuts, summed.held, ("M", "K"))

    @property
    def _whole(self) -> tuple[tuple[int, ...], ...]:
        """Cuts of keys and values of full sequences."""
        rows, columns = self.layout.grid
        return even(tuple(self.shared.sizes.values()), (rows // self.parts, columns))
