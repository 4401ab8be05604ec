"""Layer norm and RMS norm: signatures of their phases, and the sums that go over the ranks.

What backward needs is kept under the operator's name, `norm1/normed`; the gradient of the input is
`norm1/dI`.
"""

from __future__ import annotations

from primepar.models.graph import Operator
from primepar.operators.builder import View
from primepar.operators.step_context import StepContext


class NormLowering:
    """Layer or RMS norm; its means go over the ranks that share rows."""

    def __init__(self, step: StepContext, operator: Operator) -> None:
        self.step, self.builder, self.name = step, step.builder, operator.name
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
            x = self._wide("centre", [x, mean], "centred[M,K]")
        self.square = self._sum("square", [x], "square[M]")
        self.normed = self._wide("divide", [x, self.square], "normed[M,K]")
        reads = [self.normed, self.weight, *([self.bias] if self.centred else [])]
        return self.builder.compute(
            self.name, "norm.forward", self.at, reads, f"{self.name}[M,K]"
        )  # fmt: skip

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradients of weight and bias, summed over the rows, and that of the rows."""
        self.step.add_gradient(f"{self.name}.weight", "norm.gradient", self.at, [dy, self.normed])
        if self.centred:
            self.step.add_gradient(f"{self.name}.bias", "bias.gradient", self.at, [dy])
        reads = [dy, self.weight, self.normed]
        sums = self._sum("backward.sums", reads, "dsums[0,M]", fixed=1 + self.centred)
        reads += [self.square, sums]
        own = f"{self.name}/dI[M,K]"
        return (self.builder.compute(self.name, "norm.backward", self.at, reads, own),)

    def _wide(self, phase: str, reads: list[View], writes: str, fixed: int = 1) -> View:
        """A phase whose result is held in float32 at least."""
        kernel, own = f"norm.{phase}", f"{self.name}/{writes}"
        return self.builder.compute(
            self.name, kernel, self.at, reads, own, fixed=fixed, wide=True
        )  # fmt: skip

    def _sum(self, phase: str, reads: list[View], writes: str, fixed: int = 1) -> View:
        """Sums over all columns of every row, on all ranks that share it."""
        total = self._wide(phase, reads, writes, fixed)
        self.builder.all_reduce(total, self.sharing)
        return total
