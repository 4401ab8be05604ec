"""Operators in a step that work on the block of every rank, and norms.

What backward needs is kept under the operator's name, `norm1/normed`; gradients of the input are
`norm1/dI`.
"""

from __future__ import annotations

from primepar.models.graph import Operator
from primepar.plan.step.context import Step
from primepar.plan.step.draft import View


class StepNorm:
    """Layer or RMS norm; its means go over the ranks that share rows."""

    def __init__(self, step: Step, operator: Operator) -> None:
        self.step, self.draft, self.name = step, step.draft, operator.name
        layout = step.ends(self.name).output
        self.at, self.sharing = step.space(layout, operator.K), layout.peers_along(1)
        self.takes = self.at.cuts
        self.weight = step.given(f"{self.name}.weight", self.at, "K")
        self.centred = f"{self.name}.bias" in step.places
        if self.centred:
            self.bias = step.given(f"{self.name}.bias", self.at, "K")

    def forward(self, *inputs: View) -> View:
        """Lower the normed rows, times weight plus bias."""
        (x,) = inputs
        if self.centred:
            mean = self._sum("mean", [x], "mean[M]")
            x = self._compute("centre", [x, mean], "centred[M,K]")
        self.square = self._sum("square", [x], "square[M]")
        self.normed = self._compute("divide", [x, self.square], "normed[M,K]")
        reads = [self.normed, self.weight, *([self.bias] if self.centred else [])]
        return self.draft.compute(f"{self.name}.forward", self.at, reads, f"{self.name}[M,K]")

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradients of weight and bias, summed over the rows, and that of the rows."""
        self._add_gradient("weight", [dy, self.normed])
        if self.centred:
            self._add_gradient("bias", [dy])
        reads = [dy, self.weight, self.normed]
        sums = self._sum("backward.sums", reads, "dsums[0,M]", fixed=1 + self.centred)
        return (self._compute("backward", [*reads, self.square, sums], "dI[M,K]"),)

    def _compute(self, phase: str, reads: list[View], writes: str, fixed: int = 1) -> View:
        name = self.name
        return self.draft.compute(
            f"{name}.{phase}", self.at, reads, f"{name}/{writes}", fixed=fixed
        )

    def _sum(self, phase: str, reads: list[View], writes: str, fixed: int = 1) -> View:
        """Sums over all columns of every row, on all ranks that share it."""
        total = self._compute(phase, reads, writes, fixed)
        self.draft.all_reduce(total, self.sharing)
        return total

    def _add_gradient(self, own: str, reads: list[View]) -> None:
        name = f"{self.name}.{own}"
        gradient = self.draft.compute(f"{name}.gradient", self.at, reads, f"{name}.grad[K]")
        self.step.add_gradient(name, gradient)


class StepActivation:
    """The activation: a block of the output of the same block of the input."""

    def __init__(self, step: Step, operator: Operator) -> None:
        self.draft, self.name = step.draft, operator.name
        layout = step.ends(self.name).output
        self.given = step.space(layout, operator.N)
        self.made = step.space(layout, operator.K)
        self.takes = self.given.cuts

    def forward(self, *inputs: View) -> View:
        """Lower the output."""
        (self.x,) = inputs
        return self.draft.compute(f"{self.name}.forward", self.made, [self.x], f"{self.name}[M,K]")

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradient of the input, which is made of the input again."""
        phase, writes = f"{self.name}.backward", f"{self.name}/dI[M,K]"
        return (self.draft.compute(phase, self.given, [self.x, dy], writes),)


class StepAdd:
    """The stream and a branch, which is dropped in part."""

    def __init__(self, step: Step, operator: Operator) -> None:
        self.draft, self.name = step.draft, operator.name
        self.at = step.space(step.ends(self.name).output, operator.K)
        self.takes = self.at.cuts

    def forward(self, *inputs: View) -> View:
        """Lower the sum."""
        return self.draft.compute(f"{self.name}.forward", self.at, inputs, f"{self.name}[M,K]")

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradient of the branch; that of the stream is the output's own."""
        phase, writes = f"{self.name}.backward", f"{self.name}/dI2[M,K]"
        return dy, self.draft.compute(phase, self.at, [dy], writes)
