"""The attention of a step: every rank's queries, and all keys of its sequences.

Where a rank has a part of one sequence, the ranks that share the sequence gather its keys and
values, and sum the gradients of these, each into its own part.
"""

from __future__ import annotations

from primepar.models.graph import Operator
from primepar.operators.builder import View, even
from primepar.operators.redistribution import reblocked, summed_in_parts
from primepar.operators.step_context import StepContext
from primepar.plan.operator_layouts import sequence_lines
from primepar.schedule.program import AllGather


class AttentionLowering:
    """Attention on whole groups of heads, which cut the columns."""

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
        """Lower the heads side by side."""
        (x,) = inputs
        self.reads = [x] if self.parts == 1 else [x, self._gathered(x)]
        writes = f"{self.name}[M,K]"
        return self.builder.compute(self.name, "attention.forward", self.made, self.reads, writes)

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradient of the columns of qkv."""
        reads = [*self.reads, dy]
        if self.parts > 1:
            reads.append(self._scattered(reads))
        writes = f"{self.name}/dI[M,K]"
        return (self.builder.compute(self.name, "attention.backward", self.given, reads, writes),)

    def _gathered(self, x: View) -> View:
        """Keys and values of whole sequences, of which every rank brings those of its rows."""
        builder, name = self.builder, f"{self.name}/KV"
        own = builder.compute(self.name, "attention.keys", self.shared, [x], f"{name}[M,K]")
        held = list(own.held)
        for line in self.lines:
            blocks = tuple(block for rank in line for block in own.blocks(rank))
            for rank, block in zip(line, blocks, strict=True):
                builder.programs[rank].append(AllGather(line, block=block, blocks=blocks))
                held[rank] = tuple(index for each in line for index in own.held[each])
        gathered = View(name, own.cuts, tuple(held), own.dims)
        whole = reblocked(builder, gathered, self._whole, f"{name}.sequences")
        return View(whole.name, whole.cuts, whole.held, (f"M/{self.parts}", "K"))

    def _scattered(self, reads: list[View]) -> View:
        """Gradients of a rank's own keys and values, of all queries of the sequence."""
        kernel, writes = "attention.backward.keys", f"{self.name}/dKV[M/{self.parts},K]"
        whole = self.builder.compute(self.name, kernel, self.shared, reads, writes)
        rows = [row for ((row, _),) in self.layout.held]
        own = f"{self.name}/dKV.own"
        summed = summed_in_parts(self.builder, whole, self.lines, rows, self.shared.cuts, own)
        return View(summed.name, summed.cuts, summed.held, ("M", "K"))

    @property
    def _whole(self) -> tuple[tuple[int, ...], ...]:
        """Cuts of keys and values by whole sequences."""
        rows, columns = self.layout.grid
        return even(tuple(self.shared.sizes.values()), (rows // self.parts, columns))
