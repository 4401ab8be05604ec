"""Layer norm and RMS norm: signatures of their phases, and the collectives of their statistics.

Ranks that share the rows of a layer norm all-gather the mean and variance of their columns, once.
Together these give the mean and variance of the row. An RMS norm all-reduces its mean square.

A layer norm whose rows are whole on a rank sends nothing between its phases. Then backward has one
phase for each gradient, and torch has one kernel for each phase. What backward needs is the same.

Tensors that backward needs have the operator's name, `norm1/normed`; the gradient of the input is
`norm1/dI`.
"""

from __future__ import annotations

from dataclasses import replace

from primepar.models.graph import Operator
from primepar.operators.builder import IterationSpace, View, even
from primepar.operators.redistribution import gathered
from primepar.operators.step_context import StepContext


class NormLowering:
    """Layer or RMS norm; ranks that share rows exchange their statistics once in forward."""

    def __init__(self, step: StepContext, operator: Operator) -> None:
        self.step, self.builder, self.name = step, step.builder, operator.name
        self.layout = step.ends(self.name).output
        self.space, self.sharing = step.space(self.layout, operator.K), self.layout.peers_along(1)
        self.takes = self.space.cuts
        self.weight = step.given(f"{self.name}.weight", self.space, "K")
        self.centred = f"{self.name}.bias" in step.places
        if self.centred:
            self.bias = step.given(f"{self.name}.bias", self.space, "K")
        self.is_whole = self.centred and self.layout.grid[1] == 1

    def forward(self, *inputs: View) -> View:
        """Lower the normalized rows, times weight plus bias."""
        (x,) = inputs
        if self.is_whole:
            if self.step.trains:  # only backward reads them
                phase, writes = "layer_norm.statistics", "statistics[0,M]"
                self.statistics = self._wide(phase, [x], writes, fixed=2)
            self.normed = self._wide("layer_norm.normalize", [x], "normed[M,K]")
        else:
            self.statistics = self._moments(x) if self.centred else self._square(x)
            self.normed = self._wide("norm.normalize", [x, self.statistics], "normed[M,K]")
        reads = [self.normed, self.weight, *([self.bias] if self.centred else [])]
        return self._compute("norm.forward", reads, self.name)

    def backward(self, dy: View) -> tuple[View, ...]:
        """Lower the gradients of weight and bias, summed over the rows, and that of the rows."""
        kernel = "layer_norm" if self.is_whole else "norm"
        self.step.add_gradient(
            f"{self.name}.weight", f"{kernel}.gradient", self.space, [dy, self.normed]
        )
        if self.centred:
            self.step.add_gradient(f"{self.name}.bias", "bias.gradient", self.space, [dy])
        reads = [dy, self.weight, self.normed]
        sums = []
        if not self.is_whole:
            sums = [self._sum("norm.backward.sums", reads, "dsums[0,M]", fixed=1 + self.centred)]
        reads += [self.statistics, *sums]
        return (self._compute(f"{kernel}.backward", reads, f"{self.name}/dI"),)

    def _compute(self, kernel: str, reads: list[View], tensor: str) -> View:
        """Compute a phase whose result has rows and columns."""
        return self.builder.compute(self.name, kernel, self.space, reads, f"{tensor}[M,K]")

    def _wide(self, kernel: str, reads: list[View], writes: str, fixed: int = 1) -> View:
        """Compute a phase whose result has float32 at least."""
        writes = f"{self.name}/{writes}"
        return self.builder.compute(
            self.name, kernel, self.space, reads, writes, fixed=fixed, wide=True
        )  # fmt: skip

    def _square(self, x: View) -> View:
        return self._sum("norm.square", [x], "square[M]")

    def _moments(self, x: View) -> View:
        """Compute mean and variance of every rank's columns, `[2, rows, parts]`, of all parts."""
        parts = IterationSpace(self.layout, {"M": self.step.rows, "K": self.layout.grid[1]})
        writes = f"{self.name}/moments[0,M,K]"
        local = self.builder.compute(
            self.name, "norm.moments", parts, [x], writes, fixed=2, wide=True
        )  # fmt: skip
        cuts = even(tuple(line[-1] for line in local.cuts), (1, self.layout.grid[0], 1))
        view = gathered(self.builder, local, self.sharing, cuts, f"{local.name}.rows")
        return replace(view, dims=("0", "M", "0"))

    def _sum(self, kernel: str, reads: list[View], writes: str, fixed: int = 1) -> View:
        """Sum over all columns of every row, on all ranks that share it."""
        total = self._wide(kernel, reads, writes, fixed)
        self.builder.all_reduce(total, self.sharing)
        return total
